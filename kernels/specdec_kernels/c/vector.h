/* Sixteen float32 lanes: one AVX-512 register, two of AVX2, or an array for any other processor.

Sums run over the same lanes in the same order on all of them, and every multiply-add rounds once, so that a sum of floats has the same bits on all. */
#ifndef SPECDEC_VECTOR_H
#define SPECDEC_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define SPECDEC_AVX512
#endif
#if defined(SPECDEC_AVX512) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#define SPECDEC_REGISTERS
#endif
/* Loops over rows and columns of a tile are laid out where the tile fits into registers; elsewhere that only takes long to compile. */
#if defined(SPECDEC_REGISTERS)
#define UNROLL _Pragma("GCC unroll 8")
#else
#define UNROLL
#endif
#define INLINE static inline __attribute__((always_inline))

INLINE float half_to_float(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff, out;
  if (rest >= 0x7c00) out = sign | 0x7f800000 | (rest & 0x3ff) << 13;
  else if (rest >= 0x400) out = sign | ((rest << 13) + 0x38000000);
  else {
    float tiny = (float)rest * 0x1p-24f;
    memcpy(&out, &tiny, 4);
    out |= sign;
  }
  float value;
  memcpy(&value, &out, 4);
  return value;
}

INLINE float bfloat_to_float(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

INLINE uint16_t float_to_bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (uint16_t)(value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE uint16_t float_to_half(float value) {
  uint32_t bits, sign, size;
  memcpy(&bits, &value, 4);
  sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (size >= 0x47800000) return (uint16_t)(sign | 0x7c00);
  if (size < 0x38800000) { /* below the least normal: the addition rounds to even at the right place */
    float tiny;
    memcpy(&tiny, &size, 4);
    tiny += 0.5f;
    memcpy(&size, &tiny, 4);
    return (uint16_t)(sign | (size - 0x3f000000));
  }
  return (uint16_t)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}

#if defined(SPECDEC_AVX512)
#include <immintrin.h>
#define SPECDEC_ISA "avx512"
typedef __m512 vec;
INLINE vec v_zero(void) { return _mm512_setzero_ps(); }
INLINE vec v_all(float x) { return _mm512_set1_ps(x); }
INLINE vec v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vec a) { _mm512_storeu_ps(p, a); }
INLINE vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec v_from_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
/* Of 32 numbers, those at even places and those at odd ones. */
INLINE void v_pairs_bf16(const uint16_t *p, vec *even, vec *odd) {
  const __m512i both = _mm512_loadu_si512(p);
  *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)));
}
INLINE void v_pairs(const float *p, float *even, float *odd) {
  const __m512i at = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const vec low = v_load(p), high = v_load(p + LANES);
  v_store(even, _mm512_permutex2var_ps(low, at, high)), v_store(odd, _mm512_permutex2var_ps(low, _mm512_add_epi32(at, _mm512_set1_epi32(1)), high));
}
INLINE vec v_from_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vec v_from_i8(const int8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
INLINE vec v_from_nibbles(const uint8_t *p, int high) {
  __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  bytes = _mm_and_si128(high ? _mm_srli_epi16(bytes, 4) : bytes, _mm_set1_epi8(15));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
INLINE vec v_min(vec a, vec b) { return _mm512_min_ps(a, b); }
INLINE vec v_abs(vec a) { return _mm512_abs_ps(a); }
INLINE void v_to_bytes(vec a, int8_t *out) { _mm_storeu_si128((__m128i *)out, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a))); }
INLINE vec v_floor(vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
INLINE vec v_power(vec a, vec n) { return _mm512_scalef_ps(a, n); }
INLINE vec v_silent(vec x, vec y) {
  y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ), _mm512_setzero_ps());
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}
INLINE __m256 v_low(vec a) { return _mm512_castps512_ps256(a); }
INLINE __m256 v_high(vec a) { return _mm512_extractf32x8_ps(a, 1); }
#elif defined(SPECDEC_REGISTERS)
#include <immintrin.h>
#define SPECDEC_ISA "avx2"
typedef struct { __m256 low, high; } vec;
INLINE vec v_zero(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE vec v_all(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vec v_load(const float *p) { return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void v_store(float *p, vec a) { _mm256_storeu_ps(p, a.low), _mm256_storeu_ps(p + 8, a.high); }
INLINE vec v_fma(vec a, vec b, vec c) { return (vec){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)}; }
INLINE vec v_mul(vec a, vec b) { return (vec){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
INLINE vec v_div(vec a, vec b) { return (vec){_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
INLINE vec v_add(vec a, vec b) { return (vec){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
INLINE vec v_max(vec a, vec b) { return (vec){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
INLINE __m256 v_eight_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE vec v_from_bf16(const uint16_t *p) { return (vec){v_eight_bf16(p), v_eight_bf16(p + 8)}; }
INLINE void v_pairs_bf16(const uint16_t *p, vec *even, vec *odd) {
  const __m256i low = _mm256_loadu_si256((const __m256i *)p), high = _mm256_loadu_si256((const __m256i *)(p + 16)), upper = _mm256_set1_epi32((int)0xffff0000);
  *even = (vec){_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  *odd = (vec){_mm256_castsi256_ps(_mm256_and_si256(low, upper)), _mm256_castsi256_ps(_mm256_and_si256(high, upper))};
}
INLINE void v_pairs(const float *p, float *even, float *odd) {
  for (int l = 0; l < LANES; l++) even[l] = p[2 * l], odd[l] = p[2 * l + 1];
}
INLINE vec v_from_f16(const uint16_t *p) {
  return (vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
INLINE vec v_widened(__m128i bytes, int is_signed) {
  __m128i upper = _mm_srli_si128(bytes, 8);
  if (is_signed) return (vec){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(upper))};
  return (vec){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(upper))};
}
INLINE vec v_from_i8(const int8_t *p) { return v_widened(_mm_loadu_si128((const __m128i *)p), 1); }
INLINE vec v_from_nibbles(const uint8_t *p, int high) {
  __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  return v_widened(_mm_and_si128(high ? _mm_srli_epi16(bytes, 4) : bytes, _mm_set1_epi8(15)), 0);
}
INLINE vec v_min(vec a, vec b) { return (vec){_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
INLINE __m256 v_eight_abs(__m256 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE vec v_abs(vec a) { return (vec){v_eight_abs(a.low), v_eight_abs(a.high)}; }
INLINE void v_to_bytes(vec a, int8_t *out) {
  __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high));
  words = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128((__m128i *)out, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
INLINE vec v_floor(vec a) { return (vec){_mm256_floor_ps(a.low), _mm256_floor_ps(a.high)}; }
INLINE __m256 v_eight_power(__m256 a, __m256 n) {
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)));
}
INLINE vec v_power(vec a, vec n) { return (vec){v_eight_power(a.low, n.low), v_eight_power(a.high, n.high)}; }
INLINE __m256 v_eight_silent(__m256 x, __m256 y) {
  y = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ), y);
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
INLINE vec v_silent(vec x, vec y) { return (vec){v_eight_silent(x.low, y.low), v_eight_silent(x.high, y.high)}; }
INLINE __m256 v_low(vec a) { return a.low; }
INLINE __m256 v_high(vec a) { return a.high; }
#else
#define SPECDEC_ISA "portable"
typedef struct { float lane[LANES]; } vec;
#define EACH(expression) vec out; for (int l = 0; l < LANES; l++) out.lane[l] = (expression); return out
INLINE vec v_zero(void) { EACH(0.0f); }
INLINE vec v_all(float x) { EACH(x); }
INLINE vec v_load(const float *p) { EACH(p[l]); }
INLINE void v_store(float *p, vec a) { memcpy(p, a.lane, sizeof a.lane); }
INLINE vec v_fma(vec a, vec b, vec c) { EACH(fmaf(a.lane[l], b.lane[l], c.lane[l])); }
INLINE vec v_mul(vec a, vec b) { EACH(a.lane[l] * b.lane[l]); }
INLINE vec v_div(vec a, vec b) { EACH(a.lane[l] / b.lane[l]); }
INLINE vec v_add(vec a, vec b) { EACH(a.lane[l] + b.lane[l]); }
INLINE vec v_max(vec a, vec b) { EACH(a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l]); }
INLINE vec v_min(vec a, vec b) { EACH(a.lane[l] < b.lane[l] ? a.lane[l] : b.lane[l]); }
INLINE vec v_abs(vec a) { EACH(fabsf(a.lane[l])); }
INLINE void v_to_bytes(vec a, int8_t *out) {
  for (int l = 0; l < LANES; l++) out[l] = (int8_t)rintf(a.lane[l]);
}
INLINE vec v_floor(vec a) { EACH(floorf(a.lane[l])); }
INLINE vec v_power(vec a, vec n) { EACH(a.lane[l] == a.lane[l] ? ldexpf(a.lane[l], (int)n.lane[l]) : a.lane[l]); }
INLINE vec v_silent(vec x, vec y) { EACH(x.lane[l] != x.lane[l] ? x.lane[l] : x.lane[l] < -87.0f ? 0.0f : y.lane[l]); }
INLINE vec v_from_bf16(const uint16_t *p) { EACH(bfloat_to_float(p[l])); }
INLINE void v_pairs_bf16(const uint16_t *p, vec *even, vec *odd) {
  for (int l = 0; l < LANES; l++) even->lane[l] = bfloat_to_float(p[2 * l]), odd->lane[l] = bfloat_to_float(p[2 * l + 1]);
}
INLINE void v_pairs(const float *p, float *even, float *odd) {
  for (int l = 0; l < LANES; l++) even[l] = p[2 * l], odd[l] = p[2 * l + 1];
}
INLINE vec v_from_f16(const uint16_t *p) { EACH(half_to_float(p[l])); }
INLINE vec v_from_i8(const int8_t *p) { EACH((float)p[l]); }
INLINE vec v_from_nibbles(const uint8_t *p, int high) { EACH((float)(high ? p[l] >> 4 : p[l] & 15)); }
#endif

#if defined(SPECDEC_REGISTERS)
/* Halves are added to halves: 16, 8, 4, 2, 1. */
INLINE float v_sum(vec a) {
  __m256 eight = _mm256_add_ps(v_low(a), v_high(a));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
#else
INLINE float v_sum(vec a) {
  for (int half = LANES / 2; half; half /= 2)
    for (int l = 0; l < half; l++) a.lane[l] += a.lane[l + half];
  return a.lane[0];
}
#endif

/* Four of them at once, each as v_sum adds it. */
#if defined(SPECDEC_AVX512)
INLINE void v_four_sums(vec a, vec b, vec c, vec d, float *out) {
  const vec ab = v_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee)); /* the eights of both, side by side */
  const vec cd = v_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  const vec four = v_add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)); /* the fours of all */
  const vec two = v_add(four, _mm512_permute_ps(four, 0x4e)), one = v_add(two, _mm512_permute_ps(two, 0xb1));
  const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
}
#elif defined(SPECDEC_REGISTERS)
INLINE void v_four_sums(vec a, vec b, vec c, vec d, float *out) {
  __m256 e = _mm256_add_ps(v_low(a), v_high(a)), f = _mm256_add_ps(v_low(b), v_high(b));
  __m256 g = _mm256_add_ps(v_low(c), v_high(c)), h = _mm256_add_ps(v_low(d), v_high(d));
  /* Two eights become the fours of both, side by side. */
  __m256 ef = _mm256_add_ps(_mm256_permute2f128_ps(e, f, 0x20), _mm256_permute2f128_ps(e, f, 0x31));
  __m256 gh = _mm256_add_ps(_mm256_permute2f128_ps(g, h, 0x20), _mm256_permute2f128_ps(g, h, 0x31));
  /* In each half: the twos of one of (e, f) and of one of (g, h). */
  __m256 two = _mm256_add_ps(_mm256_shuffle_ps(ef, gh, 0x44), _mm256_shuffle_ps(ef, gh, 0xee));
  __m256 one = _mm256_add_ps(_mm256_permute_ps(two, 0xa0), _mm256_permute_ps(two, 0xf5));
  __m128 low = _mm256_castps256_ps128(one), high = _mm256_extractf128_ps(one, 1);
  __m128 pairs = _mm_shuffle_ps(low, high, 0x88); /* a c b d */
  _mm_storeu_ps(out, _mm_permute_ps(pairs, 0xd8));
}
#else
INLINE void v_four_sums(vec a, vec b, vec c, vec d, float *out) { out[0] = v_sum(a), out[1] = v_sum(b), out[2] = v_sum(c), out[3] = v_sum(d); }
#endif

#if defined(SPECDEC_REGISTERS)
INLINE float v_most(vec a) {
  __m256 eight = _mm256_max_ps(v_low(a), v_high(a));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
#else
INLINE float v_most(vec a) {
  for (int l = 1; l < LANES; l++) a.lane[0] = a.lane[l] > a.lane[0] ? a.lane[l] : a.lane[0];
  return a.lane[0];
}
#endif

/* The first `count` lanes of what is at p, and zeros. */
INLINE vec v_part(const float *p, int count) {
  float lane[LANES] = {0};
  memcpy(lane, p, sizeof(float) * count);
  return v_load(lane);
}

/* e^x as float32 in the same operations everywhere: 2^n times a polynomial (Cephes' expf), 0 below -87, and NaN where x is NaN. */
INLINE vec v_exp(vec x) {
  vec a = v_min(v_max(v_all(-87.0f), x), v_all(88.0f));
  vec n = v_floor(v_fma(a, v_all(1.44269504088896341f), v_all(0.5f)));
  vec r = v_fma(n, v_all(2.12194440e-4f), v_fma(n, v_all(-0.693359375f), a));
  vec p = v_fma(v_all(1.9875691500e-4f), r, v_all(1.3981999507e-3f));
  p = v_fma(p, r, v_all(8.3334519073e-3f));
  p = v_fma(p, r, v_all(4.1665795894e-2f));
  p = v_fma(p, r, v_all(1.6666665459e-1f));
  p = v_fma(p, r, v_all(5.0000001201e-1f));
  p = v_fma(p, v_mul(r, r), v_add(r, v_all(1.0f)));
  return v_silent(x, v_power(p, n));
}

#endif
