/* The race's uniform numbers: threefry-2x32 with 20 rounds on sixteen counters at a time, and the map to (0, 1]; and a few words alone.

The generator is that of specdec_kernels.threefry, in 32-bit lanes: these are its bits. */
#include "team.h"

#define COUNT 16
#define MOST 32 /* blocks that a thread takes in a piece */
typedef uint32_t words __attribute__((vector_size(4 * COUNT)));
typedef double reals __attribute__((vector_size(8 * COUNT)));

static const int by[8] = {13, 15, 26, 6, 17, 29, 16, 24}; /* bits that a round turns its second word by */

INLINE words turned(words x, int by) { return x << by | x >> (32 - by); }

/* What is added to both words before and between the rounds, every four of them. Spread over the lanes in memory, since otherwise each block would
spread them anew. */
typedef struct {
  words first[6], second[6];
} schedule;

static schedule schedule_of(const int64_t *key) {
  const uint32_t k0 = (uint32_t)key[0], k1 = (uint32_t)key[1], all[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDA};
  schedule s;
  for (uint32_t j = 0; j < 6; j++) s.first[j] = (words){0} + all[j % 3], s.second[j] = (words){0} + (all[(j + 1) % 3] + j);
  return s;
}

/* Blocks [low, high) of a row. */
static __attribute__((noinline)) void some_blocks(const schedule *s, int64_t low, int64_t high, int64_t columns, double sign, double *out) {
  const words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const double large = sign * 0x1p-32, small = sign * 0x1p-64;
  for (int64_t block = low; block < high; block++) {
    const int64_t from = block * COUNT;
    words x0 = (words){0} + (uint32_t)((uint64_t)from >> 32) + s->first[0], x1 = (words){0} + (uint32_t)from + lane + s->second[0];
    for (int j = 0; j < 5; j++) {
      for (int i = 0; i < 4; i++) x0 += x1, x1 = turned(x1, by[(4 * j + i) % 8]) ^ x0;
      x0 += s->first[j + 1], x1 += s->second[j + 1];
    }
    const reals u = __builtin_convertvector(x0, reals) * large + (__builtin_convertvector(x1, reals) + 0.5) * small;
    memcpy(out + from, &u, sizeof(double) * (columns - from < COUNT ? columns - from : COUNT));
  }
}

/* out[i] = the two words of counter (0, counters[i]) under one key. */
int specdec_threefry(const int64_t *key, const int64_t *counters, int64_t *out, int64_t count) {
  const uint32_t k0 = (uint32_t)key[0], k1 = (uint32_t)key[1], all[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDA};
  for (int64_t n = 0; n < count; n++) {
    uint32_t x0 = k0, x1 = (uint32_t)counters[n] + k1;
    for (int j = 0; j < 5; j++) {
      for (int i = 0; i < 4; i++) {
        const int left = by[(4 * j + i) % 8];
        x0 += x1, x1 = (x1 << left | x1 >> (32 - left)) ^ x0;
      }
      x0 += all[(j + 1) % 3], x1 += all[(j + 2) % 3] + (uint32_t)(j + 1);
    }
    out[2 * n] = x0, out[2 * n + 1] = x1;
  }
  return 0;
}

/* out[r][i] = sign (word0 2^-32 + (word1 + 1/2) 2^-64) of counter i under keys[r], for `rows` keys of two words and i < columns; sign is 1 or -1. */
int specdec_noise(const int64_t *keys, double *out, int64_t rows, int64_t columns, double sign, int threads) {
  const int64_t blocks = (columns + COUNT - 1) / COUNT, pieces = (blocks + MOST - 1) / MOST;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t piece = 0; piece < rows * pieces; piece++) {
    const int64_t r = piece / pieces, low = piece % pieces * MOST;
    const schedule s = schedule_of(keys + 2 * r);
    some_blocks(&s, low, low + MOST < blocks ? low + MOST : blocks, columns, sign, out + r * columns);
  }
  return 0;
}
