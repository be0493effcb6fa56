/* The race's uniform numbers: threefry-2x32 with 20 rounds on sixteen counters at a time, and the map to [0, 1].

The generator is that of specdec_kernels.threefry, in 32-bit lanes: these are its bits. */
#include "team.h"

#define COUNT 16
#define MOST 32 /* blocks that a thread takes in a piece */
typedef uint32_t words __attribute__((vector_size(4 * COUNT)));
typedef double reals __attribute__((vector_size(8 * COUNT)));

INLINE words turned(words x, int by) { return x << by | x >> (32 - by); }

/* out[r][i] = word0 2^-32 + (word1 + 1/2) 2^-64 of counter i under keys[r], for `rows` keys of two words and i < columns. */
int specdec_noise(const int64_t *keys, double *out, int64_t rows, int64_t columns, int threads) {
  static const int by[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  const int64_t blocks = (columns + COUNT - 1) / COUNT;
#pragma omp parallel for num_threads(threads) schedule(static, MOST)
  for (int64_t b = 0; b < rows * blocks; b++) {
    const int64_t r = b / blocks, first = b % blocks * COUNT;
    const uint32_t k0 = (uint32_t)keys[2 * r], k1 = (uint32_t)keys[2 * r + 1], key[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDA};
    words x0, x1;
    for (int l = 0; l < COUNT; l++) x0[l] = (uint32_t)((uint64_t)(first + l) >> 32) + k0, x1[l] = (uint32_t)(first + l) + k1;
    for (int j = 0; j < 5; j++) {
      for (int i = 0; i < 4; i++) x0 += x1, x1 = turned(x1, by[(4 * j + i) % 8]) ^ x0;
      x0 += key[(j + 1) % 3], x1 += key[(j + 2) % 3] + (uint32_t)(j + 1);
    }
    const reals u = __builtin_convertvector(x0, reals) * 0x1p-32 + (__builtin_convertvector(x1, reals) + 0.5) * 0x1p-64;
    memcpy(out + r * columns + first, &u, sizeof(double) * (columns - first < COUNT ? columns - first : COUNT));
  }
  return 0;
}
