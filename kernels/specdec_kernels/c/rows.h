/* The product of a few rows and a weight matrix that streams the weights once: y[m][r] = sum over i of x[m][i] w[r][i].

A few weight rows at a time, one accumulator for each input row and weight row. A sum runs over the inputs in one order, sixteen lanes wide, that
depends neither on the number of rows nor on the row's place, the threads or the tile: its bits are the same in any company. */
#ifndef SPECDEC_ROWS_H
#define SPECDEC_ROWS_H

#include "vector.h"

enum { F32, BF16, F16, INT8, Q8_0, Q4_0, Q4_1, INT4 };

typedef struct {
  const void *codes;   /* [outputs] rows of `stride` bytes */
  const float *scales; /* [outputs] for INT8, [outputs, 2 pairs] for INT4, scales before offsets, else NULL */
  int32_t kind, outputs, inputs, whole; /* whole: activations are int8 as well */
  int64_t stride;
} matrix;

/* Rows as int8 numbers in groups of 32, laid out as the products read them: in pairs of groups, 64 bytes.

A product sums four neighbours of the 64 into each of sixteen lanes. INT8 and Q8_0: a pair as it is. Q4_0 and Q4_1: the first halves of both groups,
then the second, as the low and the high half of a block's bytes give them. INT4: its groups are pairs, the first half low and the second high. */
typedef struct {
  int8_t *codes;   /* [rows, pairs, 64]; Q8_0: 128 is added to each, since its weights are signed */
  float *scales;   /* [rows, pairs, 16]: the scale of the group that a lane sums; INT4: lane 0 alone, for all */
  int32_t *sums;   /* [rows, pairs, 16]: in one lane of each group the sum of its codes, else 0; Q8_0: nothing; INT4: [rows, pairs] float32, scaled sums, at the front;
                      INT8: at the first pair of each scale, what every lane sums of its codes times -128 */
} whole_rows;

/* INT8 has one scale for 256 activations, so that its products are summed as integers; the others one for each group of 32. */
#define INT8_PAIRS 4

INLINE int8_t int4_code(const uint8_t *pair, int i) { return (int8_t)(i < 32 ? pair[i] & 15 : pair[i - 32] >> 4); }

INLINE vec weight_at(const int kind, const uint8_t *row, int i) {
  if (kind == F32) return v_load((const float *)row + i);
  if (kind == BF16) return v_from_bf16((const uint16_t *)row + i);
  if (kind == F16) return v_from_f16((const uint16_t *)row + i);
  if (kind == INT8) return v_from_i8((const int8_t *)row + i);
  const int size = kind == Q8_0 ? 34 : kind == Q4_0 ? 18 : 20;
  const uint8_t *block = row + (int64_t)(i / 32) * size;
  uint16_t d, m;
  memcpy(&d, block, 2);
  if (kind == Q8_0) return v_mul(v_from_i8((const int8_t *)block + 2 + i % 32), v_all(half_to_float(d)));
  if (kind == Q4_0) return v_mul(v_add(v_from_nibbles(block + 2, i % 32 != 0), v_all(-8.0f)), v_all(half_to_float(d)));
  memcpy(&m, block + 2, 2);
  /* Two roundings, as the format defines its value. */
  return v_add(v_mul(v_from_nibbles(block + 4, i % 32 != 0), v_all(half_to_float(d))), v_all(half_to_float(m)));
}

/* The last inputs of a row of plain numbers, where they are no whole load. */
INLINE vec weight_part(const int kind, const uint8_t *row, int i, int count) {
  float lane[LANES] = {0};
  for (int l = 0; l < count; l++)
    lane[l] = kind == F32 ? ((const float *)row)[i + l] : kind == BF16 ? bfloat_to_float(((const uint16_t *)row)[i + l])
            : kind == F16 ? half_to_float(((const uint16_t *)row)[i + l]) : (float)((const int8_t *)row)[i + l];
  return v_load(lane);
}

INLINE void prefetch_row(const uint8_t *row, int64_t at) { __builtin_prefetch(row + at, 0, 3); }

/* The sums of a tile of R weight rows from r on, of which `own` are wanted, and M rows to their places; four at a time, since adding up lanes takes
as long as dozens of products. */
INLINE void put(const int kind, const int M, const int R, const matrix *w, vec sum[4][8], float *y, int64_t ld, int r, int own) {
  float total[32]; /* 4 rows times 8 */
UNROLL
  for (int i = 0; i < (R * M + 3) / 4; i++) {
    vec four[4];
UNROLL
    for (int j = 0; j < 4; j++) four[j] = 4 * i + j < R * M ? sum[(4 * i + j) % R][(4 * i + j) / R] : v_zero();
    v_four_sums(four[0], four[1], four[2], four[3], total + 4 * i);
  }
UNROLL
  for (int m = 0; m < M; m++)
UNROLL
    for (int a = 0; a < R; a++)
      if (a < own) y[m * ld + r + a] = kind == INT8 ? total[m * R + a] * w->scales[r + a] : total[m * R + a];
}

/* R weight rows from r on, of which `own` are wanted, times M rows. */
INLINE void float_tile(const int kind, const int M, const int R, const matrix *w, const float *x, int64_t ldx, float *y, int64_t ldy, int r, int own, int left) {
  const uint8_t *row[4];
  vec sum[4][8];
UNROLL
  for (int a = 0; a < R; a++) {
    row[a] = (const uint8_t *)w->codes + w->stride * (r + (a < own ? a : 0));
UNROLL
    for (int m = 0; m < M; m++) sum[a][m] = v_zero();
  }
  const int whole = w->inputs / LANES * LANES, paired = kind == BF16 ? w->inputs / (2 * LANES) * (2 * LANES) : 0;
  const int64_t ahead = left > 2 * R ? w->stride * 2 * R : 0;
  const int bytes = kind == F32 ? 64 : kind == BF16 || kind == F16 ? 32 : 16;
  /* Two bfloat16 numbers of one word are taken apart by a shift and a mask; x lies in that order. */
  for (int i = 0; i < paired; i += 2 * LANES) {
    vec u[4], v[4];
UNROLL
    for (int a = 0; a < R; a++) {
      v_pairs_bf16((const uint16_t *)row[a] + i, &u[a], &v[a]);
      prefetch_row(row[a], ahead + (int64_t)i * 2);
    }
UNROLL
    for (int m = 0; m < M; m++) {
      const vec even = v_load(x + m * ldx + i), odd = v_load(x + m * ldx + i + LANES);
UNROLL
      for (int a = 0; a < R; a++) sum[a][m] = v_fma(v[a], odd, v_fma(u[a], even, sum[a][m]));
    }
  }
  for (int i = paired; i < whole; i += LANES) {
    vec u[4];
UNROLL
    for (int a = 0; a < R; a++) {
      u[a] = weight_at(kind, row[a], i);
      prefetch_row(row[a], ahead + (int64_t)i / LANES * bytes);
    }
UNROLL
    for (int m = 0; m < M; m++) {
      vec t = v_load(x + m * ldx + i);
UNROLL
      for (int a = 0; a < R; a++) sum[a][m] = v_fma(u[a], t, sum[a][m]);
    }
  }
  if (whole < w->inputs)
    for (int a = 0; a < R; a++) {
      vec u = weight_part(kind, row[a], whole, w->inputs - whole);
      for (int m = 0; m < M; m++) sum[a][m] = v_fma(u, v_part(x + m * ldx + whole, w->inputs - whole), sum[a][m]);
    }
  put(kind, M, R, w, sum, y, ldy, r, own);
}

INLINE int block_bytes(int kind) { return kind == INT8 ? 32 : kind == INT4 ? 16 : kind == Q8_0 ? 34 : kind == Q4_0 ? 18 : 20; }

#if defined(__AVX512VNNI__)
/* A pair of groups as 64 bytes, and the scale and offset of the group that each lane of their sums belongs to. */
INLINE __m512i pair_codes(const int kind, const uint8_t *a, const uint8_t *b) {
  if (kind == INT8 || kind == Q8_0) {
    const int skip = kind == Q8_0 ? 2 : 0;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(a + skip))), _mm256_loadu_si256((const __m256i *)(b + skip)), 1);
  }
  const int skip = kind == Q4_0 ? 2 : 4;
  __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(a + skip))), _mm_loadu_si128((const __m128i *)(b + skip)), 1);
  __m512i wide = _mm512_inserti64x4(_mm512_castsi256_si512(both), _mm256_srli_epi16(both, 4), 1);
  return _mm512_and_si512(wide, _mm512_set1_epi8(15)); /* low a, low b, high a, high b */
}

INLINE vec pair_numbers(const int kind, const uint8_t *a, const uint8_t *b, int at) {
  uint16_t one, two;
  memcpy(&one, a + at, 2), memcpy(&two, b + at, 2);
  __m512 both = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128((int)(one | (uint32_t)two << 16))));
  const __m512i lanes = kind == Q8_0 ? _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
                                     : _mm512_set_epi32(1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutexvar_ps(lanes, both);
}

INLINE void whole_tile(const int kind, const int M, const int R, const matrix *w, const whole_rows *x, float *y, int64_t ldy, int r, int own_rows, int left) {
  const int size = block_bytes(kind), groups = w->inputs / 32, pairs = (groups + 1) / 2;
  static const uint8_t nothing[64] = {0};
  const uint8_t *row[4];
  vec sum[4][8];
UNROLL
  for (int a = 0; a < R; a++) {
    row[a] = (const uint8_t *)w->codes + w->stride * (r + (a < own_rows ? a : 0));
UNROLL
    for (int m = 0; m < M; m++) sum[a][m] = v_zero();
  }
  const int64_t ahead = left > 2 * R ? w->stride * 2 * R : 0;
  if (kind == INT8) {
    for (int first = 0; first < pairs; first += INT8_PAIRS) {
      const int last = first + INT8_PAIRS < pairs ? first + INT8_PAIRS : pairs;
      /* Weights are made unsigned by adding 128, and 128 times the sum of the activations is taken off beforehand. */
      __m512i total[4][8];
UNROLL
      for (int m = 0; m < M; m++) {
        const __m512i less = _mm512_loadu_si512(x->sums + ((int64_t)m * pairs + first) * LANES);
UNROLL
        for (int a = 0; a < R; a++) total[a][m] = less;
      }
      for (int p = first; p < last; p++) {
        __m512i code[4];
UNROLL
        for (int a = 0; a < R; a++) {
          const uint8_t *at = row[a] + (int64_t)64 * p;
          prefetch_row(row[a], ahead + (int64_t)64 * p);
          code[a] = 2 * p + 1 < groups ? _mm512_loadu_si512(at) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)at));
          code[a] = _mm512_xor_si512(code[a], _mm512_set1_epi8((char)128));
        }
UNROLL
        for (int m = 0; m < M; m++) {
          const __m512i t = _mm512_loadu_si512(x->codes + ((int64_t)m * pairs + p) * 64);
UNROLL
          for (int a = 0; a < R; a++) total[a][m] = _mm512_dpbusd_epi32(total[a][m], code[a], t);
        }
      }
UNROLL
      for (int m = 0; m < M; m++) {
        const vec own_scale = v_load(x->scales + ((int64_t)m * pairs + first) * LANES);
UNROLL
        for (int a = 0; a < R; a++) sum[a][m] = v_fma(_mm512_cvtepi32_ps(total[a][m]), own_scale, sum[a][m]);
      }
    }
  } else if (kind == INT4) {
    const float *own[4];
UNROLL
    for (int a = 0; a < R; a++) own[a] = w->scales + (int64_t)(r + (a < own_rows ? a : 0)) * 2 * pairs;
    for (int p = 0; p < pairs; p++) {
      __m512i code[4];
      vec scale[4];
UNROLL
      for (int a = 0; a < R; a++) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *)(row[a] + (int64_t)32 * p));
        prefetch_row(row[a], ahead + (int64_t)32 * p);
        code[a] = _mm512_and_si512(_mm512_inserti64x4(_mm512_castsi256_si512(bytes), _mm256_srli_epi16(bytes, 4), 1), _mm512_set1_epi8(15));
        scale[a] = v_all(own[a][p]);
      }
UNROLL
      for (int m = 0; m < M; m++) {
        const int64_t at = (int64_t)m * pairs + p;
        const __m512i t = _mm512_loadu_si512(x->codes + at * 64);
        const vec own_scale = v_all(x->scales[at * LANES]);
UNROLL
        for (int a = 0; a < R; a++)
          sum[a][m] = v_fma(_mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), code[a], t)), v_mul(scale[a], own_scale), sum[a][m]);
      }
    }
    /* The offsets are a product of their own, of one number a group. */
    for (int p = 0; p < pairs; p += LANES) {
      const __mmask16 some = pairs - p < LANES ? (__mmask16)((1u << (pairs - p)) - 1) : (__mmask16)0xffff;
UNROLL
      for (int a = 0; a < R; a++) {
        const vec offset = _mm512_maskz_loadu_ps(some, own[a] + pairs + p);
UNROLL
        for (int m = 0; m < M; m++)
          sum[a][m] = v_fma(offset, _mm512_maskz_loadu_ps(some, (const float *)x->sums + (int64_t)m * pairs * LANES + p), sum[a][m]);
      }
    }
  } else
  for (int p = 0; p < pairs; p++) {
    __m512i code[4], less[4];
    vec scale[4], offset[4];
UNROLL
    for (int a = 0; a < R; a++) {
      const uint8_t *first = row[a] + (int64_t)2 * p * size, *second = 2 * p + 1 < groups ? first + size : nothing;
      prefetch_row(row[a], ahead + (int64_t)2 * p * size);
      code[a] = pair_codes(kind, first, second);
      scale[a] = pair_numbers(kind, first, second, 0);
      if (kind == Q4_1) offset[a] = pair_numbers(kind, first, second, 2);
      /* Signed weights meet activations that were made unsigned by adding 128. */
      if (kind == Q8_0)
        less[a] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8((char)128), code[a]));
    }
UNROLL
    for (int m = 0; m < M; m++) {
      const int64_t at = (int64_t)m * pairs + p;
      __m512i t = _mm512_loadu_si512(x->codes + at * 64);
      vec own_scale = v_load(x->scales + at * LANES);
      __m512i total = kind == Q8_0 ? _mm512_setzero_si512() : _mm512_loadu_si512(x->sums + at * LANES);
UNROLL
      for (int a = 0; a < R; a++) {
        if (kind == Q8_0) {
          sum[a][m] = v_fma(_mm512_cvtepi32_ps(_mm512_dpbusd_epi32(less[a], t, code[a])), v_mul(scale[a], own_scale), sum[a][m]);
        } else if (kind == Q4_0) {
          sum[a][m] = v_fma(_mm512_cvtepi32_ps(_mm512_dpbusd_epi32(total, code[a], t)), v_mul(scale[a], own_scale), sum[a][m]);
        } else {
          vec dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), code[a], t));
          vec shift = v_mul(_mm512_cvtepi32_ps(total), offset[a]);
          sum[a][m] = v_fma(v_fma(dot, scale[a], shift), own_scale, sum[a][m]);
        }
      }
    }
  }
  put(kind, M, R, w, sum, y, ldy, r, own_rows);
}
#else
INLINE void whole_tile(const int kind, const int M, const int R, const matrix *w, const whole_rows *x, float *y, int64_t ldy, int r, int own_rows, int left) {
  const int size = block_bytes(kind), groups = w->inputs / 32, pairs = (groups + 1) / 2;
  for (int a = 0; a < R && a < own_rows; a++) {
    float sum[8];
    for (int m = 0; m < M; m++) sum[m] = 0.0f;
    for (int g = 0; g < groups; g++) {
      const uint8_t *block = (const uint8_t *)w->codes + w->stride * (r + a) + (int64_t)g * size;
      int8_t code[32];
      uint16_t d = 0, o = 0;
      if (kind != INT8 && kind != INT4) memcpy(&d, block, 2);
      if (kind == Q4_1) memcpy(&o, block + 2, 2);
      if (kind == INT8 || kind == Q8_0) memcpy(code, block + (kind == Q8_0 ? 2 : 0), 32);
      else if (kind == INT4) {
        const uint8_t *pair = (const uint8_t *)w->codes + w->stride * (r + a) + (int64_t)(g / 2) * 32;
        for (int i = 0; i < 32; i++) code[i] = int4_code(pair, g % 2 * 32 + i);
      } else
        for (int i = 0; i < 16; i++) {
          const uint8_t byte = block[(kind == Q4_0 ? 2 : 4) + i];
          code[i] = (int8_t)((byte & 15) - (kind == Q4_0 ? 8 : 0));
          code[i + 16] = (int8_t)((byte >> 4) - (kind == Q4_0 ? 8 : 0));
        }
      const float scale = kind == INT8 ? 1.0f : kind == INT4 ? w->scales[(int64_t)(r + a) * 2 * pairs + g / 2] : half_to_float(d), offset = kind == Q4_1 ? half_to_float(o) : 0.0f;
      for (int m = 0; m < M; m++) {
        const int64_t at = (int64_t)m * pairs + g / 2;
        const int8_t *t = x->codes + at * 64;
        int32_t dot = 0;
        const int nibbles = kind == Q4_0 || kind == Q4_1;
        for (int i = 0; i < 32; i++)
          dot += code[i] * (nibbles ? t[i % 16 + i / 16 * 32 + g % 2 * 16] : kind == Q8_0 ? (int8_t)(t[g % 2 * 32 + i] ^ 128) : t[g % 2 * 32 + i]);
        const int lane = nibbles ? g % 2 * 4 : kind == INT4 ? 0 : g % 2 * 8;
        if (kind == INT4) {
          sum[m] = fmaf((float)dot * scale, x->scales[at * LANES], sum[m]);
          if (g % 2 == 0) sum[m] = fmaf(w->scales[(int64_t)(r + a) * 2 * pairs + pairs + g / 2], ((const float *)x->sums)[(int64_t)m * pairs * LANES + g / 2], sum[m]);
          continue;
        }
        const float shift = kind == Q4_1 ? offset * (float)x->sums[at * LANES + lane] : 0.0f;
        sum[m] = fmaf(fmaf((float)dot, scale, shift), x->scales[at * LANES + lane], sum[m]);
      }
    }
    for (int m = 0; m < M; m++) y[m * ldy + r + a] = kind == INT8 ? sum[m] * w->scales[r + a] : sum[m];
  }
}
#endif

/* Rows as the products of `w` read them, in `room` of room_for(w, rows) bytes: 8-bit codes, pairs taken apart, or x itself. */
typedef struct {
  const float *x;
  int64_t ldx;
  whole_rows q;
} prepared;

int64_t room_for(const matrix *w, int rows);
prepared prepare(const matrix *w, const float *x, int64_t ldx, int rows, void *room);

/* One row as float32, rounded to `type` first where that is a half type, as an embedding is in a pass of that type. */
void take_row(const matrix *w, int64_t row, int type, float *out);

/* Weight rows [low, high) times `rows` rows. */
void multiply(const matrix *w, const prepared *in, float *y, int64_t ldy, int rows, int low, int high);

#endif
