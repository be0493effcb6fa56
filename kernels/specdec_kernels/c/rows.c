#include "rows.h"
#include "team.h"

#if defined(SPECDEC_REGISTERS)
#define MANY(AT, K, R, S) AT(K, 1, R) AT(K, 2, R) AT(K, 3, R) AT(K, 4, S) AT(K, 5, S) AT(K, 6, S) AT(K, 7, 2) AT(K, 8, 2)
#else /* an array in place of registers: longer code would only take longer to compile */
#define MANY(AT, K, R, S) AT(K, 1, 2) AT(K, 4, 2)
#endif
#define FEW(AT, K) AT(K, 1, 2) AT(K, 4, 2)

#define FLOAT_AT(KIND, M, R) \
  case M: for (int r = low; r < high; r += R) float_tile(KIND, M, R, w, x, ldx, y, ldy, r, high - r < R ? high - r : R, high - r); break;
#define FLOATS(NAME, CASES) \
  static void NAME(const matrix *w, const float *x, int64_t ldx, float *y, int64_t ldy, int rows, int low, int high) { \
    switch (rows) { CASES } \
  }
#define WHOLE_AT(KIND, M, R) \
  case M: for (int r = low; r < high; r += R) whole_tile(KIND, M, R, w, x, y, ldy, r, high - r < R ? high - r : R, high - r); break;
#define WHOLES(NAME, CASES) \
  static void NAME(const matrix *w, const whole_rows *x, float *y, int64_t ldy, int rows, int low, int high) { \
    switch (rows) { CASES } \
  }

FLOATS(rows_f32, MANY(FLOAT_AT, F32, 4, 4))
FLOATS(rows_bf16, MANY(FLOAT_AT, BF16, 4, 4))
FLOATS(rows_int8, MANY(FLOAT_AT, INT8, 4, 4))
FLOATS(rows_f16, FEW(FLOAT_AT, F16))
FLOATS(rows_q8_0, FEW(FLOAT_AT, Q8_0))
FLOATS(rows_q4_0, FEW(FLOAT_AT, Q4_0))
FLOATS(rows_q4_1, FEW(FLOAT_AT, Q4_1))
WHOLES(whole_int8, MANY(WHOLE_AT, INT8, 4, 4))
WHOLES(whole_q8_0, MANY(WHOLE_AT, Q8_0, 4, 2))
WHOLES(whole_q4_0, MANY(WHOLE_AT, Q4_0, 4, 2))
WHOLES(whole_q4_1, MANY(WHOLE_AT, Q4_1, 4, 2))
WHOLES(whole_int4, MANY(WHOLE_AT, INT4, 4, 4))

typedef void (*floats)(const matrix *, const float *, int64_t, float *, int64_t, int, int, int);
typedef void (*wholes)(const matrix *, const whole_rows *, float *, int64_t, int, int, int);
static const floats by_float[] = {rows_f32, rows_bf16, rows_f16, rows_int8, rows_q8_0, rows_q4_0, rows_q4_1, 0};
static const wholes by_whole[] = {0, 0, 0, whole_int8, whole_q8_0, whole_q4_0, whole_q4_1, whole_int4};

void multiply(const matrix *w, const prepared *in, float *y, int64_t ldy, int rows, int low, int high) {
  const float *const x = in->x;
  const int64_t ldx = in->ldx;
  const whole_rows *const q = &in->q;
#if defined(SPECDEC_REGISTERS)
  const int most = w->whole || w->kind == F32 || w->kind == BF16 || w->kind == INT8 ? 8 : 4;
#else
  const int most = 4;
#endif
  /* A band of weight rows stays in the cache while the rows pass, a few at a time. */
  const int band = rows > most ? 16 : high - low;
  const int64_t pairs = (w->inputs / 32 + 1) / 2;
  for (int r = low; r < high; r += band) {
    const int end = r + band < high ? r + band : high;
    for (int m = 0, some; m < rows; m += some) {
      const int left = rows - m, tiles = (left + 7) / 8;
      some = left >= most ? most : most == 8 ? left : 1;
      if (w->kind == F32 && most == 8) some = (left + tiles - 1) / tiles; /* 6 and 5 in place of 8 and 3: a tile of 8 rows reads x too often */
      if (w->whole) {
        const whole_rows part = {q->codes + m * pairs * 64, q->scales + m * pairs * LANES, q->sums + m * pairs * LANES};
        by_whole[w->kind](w, &part, y + m * ldy, ldy, some, r, end);
      } else
        by_float[w->kind](w, x + m * ldx, ldx, y + m * ldy, ldy, some, r, end);
    }
  }
}

int64_t room_for(const matrix *w, int rows) {
  if (w->kind == BF16) return (int64_t)rows * w->inputs * 4;
  return w->whole ? (int64_t)rows * ((w->inputs / 32 + 1) / 2) * (64 + 8 * LANES) : 0;
}

/* Q4_0 reads codes of weights as 0 to 15 and means 8 less; Q4_1 means them as they are, and adds an offset. */
INLINE int32_t w_sum(const int kind, int32_t sum) { return kind == Q4_0 ? -8 * sum : sum; }

/* The 32 codes of a group to their places, its scale and, in one lane, their sum. */
INLINE void put_group(const int kind, const whole_rows *out, int64_t at, int half, const float *x, float up, float scale) {
  int8_t code[32];
  v_to_bytes(v_mul(v_load(x), v_all(up)), code);
  v_to_bytes(v_mul(v_load(x + LANES), v_all(up)), code + LANES);
  int8_t *to = out->codes + at * 64;
  float *scales = out->scales + at * LANES;
  int32_t *sums = out->sums + at * LANES, sum = 0;
  if (kind == INT4) {
    memcpy(to + 32 * half, code, 32);
    scales[0] = scale;
  } else if (kind == Q4_0 || kind == Q4_1) {
    for (int i = 0; i < 32; i++) sum += code[i];
    memcpy(to + 16 * half, code, 16), memcpy(to + 32 + 16 * half, code + 16, 16);
    for (int l = 0; l < 4; l++) scales[4 * half + l] = scales[8 + 4 * half + l] = scale, sums[4 * half + l] = sums[8 + 4 * half + l] = 0;
    sums[4 * half] = w_sum(kind, sum);
  } else {
    for (int i = 0; i < 32; i++) to[32 * half + i] = kind == Q8_0 ? (int8_t)(code[i] ^ 128) : code[i];
    for (int l = 0; l < 8; l++) scales[8 * half + l] = scale;
  }
}

/* -128 times what each lane sums of the codes of `pairs` pairs: four neighbours of each 64. */
INLINE void put_less(const int8_t *codes, int pairs, int32_t *sums) {
  for (int l = 0; l < LANES; l++) sums[l] = 0;
  for (int p = 0; p < pairs; p++)
    for (int l = 0; l < LANES; l++)
      for (int j = 0; j < 4; j++) sums[l] -= 128 * codes[64 * p + 4 * l + j];
}

/* Every group by its largest magnitude: codes = round(127 x / largest), ties to even. */
static whole_rows made_whole(const matrix *w, const float *x, int64_t ldx, int rows, void *room) {
  static const float nothing[32] = {0};
  const int groups = w->inputs / 32, pairs = (groups + 1) / 2;
  const int span = w->kind == INT8 ? INT8_PAIRS * 2 : w->kind == INT4 ? 2 : 1;
  const whole_rows out = {(int8_t *)room + (int64_t)rows * pairs * 8 * LANES, room, (int32_t *)room + (int64_t)rows * pairs * LANES};
  for (int m = 0; m < rows; m++)
    for (int first = 0; first < 2 * pairs; first += span) {
      const int last = first + span < groups ? first + span : groups;
      const float *from = x + m * ldx + (int64_t)first * 32;
      vec high = v_zero(), sick = v_zero();
      for (int i = 0; i < (last - first) * 32; i += LANES) high = v_max(high, v_abs(v_load(from + i))), sick = v_fma(v_load(from + i), v_zero(), sick);
      /* No integer stands for an infinity or a NaN: the scale carries it. */
      const int well = v_sum(sick) == 0.0f;
      const float most = v_most(high), scale = well ? most / 127.0f : NAN, up = well && most > 1e-30f ? 127.0f / most : 0.0f;
      for (int g = first; g < first + span && g < 2 * pairs; g++)
        put_group(w->kind, &out, (int64_t)m * pairs + g / 2, g % 2, g < groups && well ? from + (g - first) * 32 : nothing, up, scale);
      const int64_t begin = (int64_t)m * pairs + first / 2;
      if (w->kind == INT8) put_less(out.codes + begin * 64, (first + span < 2 * pairs ? span : 2 * pairs - first) / 2, out.sums + begin * LANES);
      if (w->kind == INT4) {
        const int8_t *codes = out.codes + begin * 64;
        int32_t sum = 0;
        for (int i = 0; i < 64; i++) sum += codes[i];
        ((float *)out.sums)[(int64_t)m * pairs * LANES + first / 2] = scale * (float)sum;
      }
    }
  return out;
}

prepared prepare(const matrix *w, const float *x, int64_t ldx, int rows, void *room) {
  prepared out = {x, ldx, {0, 0, 0}};
  if (w->whole) out.q = made_whole(w, x, ldx, rows, room);
  if (w->kind == BF16) {
    float *apart = room;
    const int paired = w->inputs / (2 * LANES) * (2 * LANES);
    for (int m = 0; m < rows; m++) {
      const float *from = x + m * ldx;
      float *to = apart + (int64_t)m * w->inputs;
      for (int i = 0; i < paired; i += 2 * LANES) v_pairs(from + i, to + i, to + i + LANES);
      memcpy(to + paired, from + paired, sizeof(float) * (w->inputs - paired));
    }
    out.x = apart, out.ldx = w->inputs;
  }
  return out;
}

void take_row(const matrix *w, int64_t row, int type, float *out) {
  const uint8_t *at = (const uint8_t *)w->codes + w->stride * row;
  const int whole = w->inputs / LANES * LANES;
  for (int i = 0; i < whole; i += LANES) {
    vec one = v_zero();
    switch (w->kind) {
      case F32: one = weight_at(F32, at, i); break;
      case BF16: one = weight_at(BF16, at, i); break;
      case F16: one = weight_at(F16, at, i); break;
      case INT8: one = weight_at(INT8, at, i); break;
      case Q8_0: one = weight_at(Q8_0, at, i); break;
      case Q4_0: one = weight_at(Q4_0, at, i); break;
      case INT4: {
        float lane[LANES];
        for (int l = 0; l < LANES; l++) {
          const int at_pair = (i + l) / 64 * 64;
          const int64_t pairs = (w->inputs / 32 + 1) / 2;
          const float *own = w->scales + row * 2 * pairs + at_pair / 64;
          lane[l] = (float)int4_code(at + at_pair / 2, i + l - at_pair) * own[0] + own[pairs];
        }
        one = v_load(lane);
        break;
      }
      default: one = weight_at(Q4_1, at, i);
    }
    v_store(out + i, one);
  }
  if (whole < w->inputs) {
    float lane[LANES];
    v_store(lane, weight_part(w->kind, at, whole, w->inputs - whole));
    memcpy(out + whole, lane, sizeof(float) * (w->inputs - whole));
  }
  for (int i = 0; i < w->inputs; i++) {
    if (w->kind == INT8) out[i] *= w->scales[row];
    if (w->kind >= INT8 && type != AS_F32) out[i] = type == AS_BF16 ? bfloat_to_float(float_to_bfloat(out[i])) : half_to_float(float_to_half(out[i]));
  }
}
