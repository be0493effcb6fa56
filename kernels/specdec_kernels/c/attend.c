/* Attention of a few rows over keys and values that lie anywhere: softmax(q k scale) v, a row, a key-value head and a part of the keys at a time.

Keys are parted by their number alone and taken in tiles of 64, and every sum runs in one order: a row's numbers depend on what it sees alone. */
#include <stdlib.h>

#include "attend.h"

#define TILE 64
#define SHARE 4 /* query heads at once that read one key head */
#define PARTS 8 /* at most, of about 128 keys up to 1,024 and of an eighth of them beyond: a team shares them where rows and heads are few */
#define FEW 16  /* rows up to which parts are shared; with more, one thread takes all parts of a row and head */

INLINE int parts_of(int64_t count) { return count < 192 ? 1 : count >= 128 * PARTS ? PARTS : (int)((count + 64) / 128); }

/* Where the parts of so many keys begin: of one size, in sixteens, but for the last. */
INLINE int64_t part_at(int64_t count, int parts, int which) {
  const int64_t at = (count + parts * 16 - 1) / (parts * 16) * 16 * which;
  return which == parts || at > count ? count : at;
}

INLINE void prefetch_number(const void *p, int type, int64_t i) { __builtin_prefetch((const char *)p + i * (type == AS_F32 ? 4 : 2), 0, 2); }

INLINE int64_t slot_at(const attention *a, const int64_t *own, int64_t i) { return a->dense ? i : own[i]; }

/* Keys [first, end) of `all` for G query heads of one row that read the same key head. out: [G, head_dim] weighed values, [G] total weights, [G] largest scores. */
#if defined(SPECDEC_REGISTERS)
INLINE
#else
static /* one form for all, since many would take minutes to compile */
#endif
void few_heads(const attention *a, const int TYPE, const int G, const float *query, const int64_t *own, int64_t first, int64_t end, int64_t all, int kv_head, int cold, float *out, float *room) {
  const int size = a->head_dim, columns = (size + LANES - 1) / LANES;
  const int64_t apart = (int64_t)a->kv_heads * size, shift = (int64_t)kv_head * size;
  const void *const keys = a->keys, *const values = a->values;
  float most[SHARE], total[SHARE];
  for (int g = 0; g < G; g++) most[g] = -INFINITY, total[g] = 0.0f;
  memset(out, 0, sizeof(float) * G * size);
  for (int64_t begin = first; begin < end; begin += TILE) {
    const int some = end - begin < TILE ? (int)(end - begin) : TILE;
    float *weight = room; /* [G, TILE] */
    int64_t at[TILE];
    for (int i = 0; i < TILE; i++) at[i] = slot_at(a, own, begin + (i < some ? i : some - 1)) * apart + shift;
    /* The processor does not foresee rows that lie apart: the next tile, of the next part too, is asked for while this one is worked on. */
    const int64_t left = !cold ? 0 : all - begin - some < TILE ? all - begin - some : TILE;
    for (int64_t i = 0; i < left; i++) {
      const int64_t next = slot_at(a, own, begin + some + i) * apart + shift;
      for (int c = 0; c < size; c += TYPE == AS_F32 ? 16 : 32) prefetch_number(keys, TYPE, next + c), prefetch_number(values, TYPE, next + c);
    }
    for (int i = 0; i < some; i += 4) {
      vec sum[SHARE][4];
UNROLL
      for (int g = 0; g < G; g++)
UNROLL
        for (int j = 0; j < 4; j++) sum[g][j] = v_zero();
      for (int c = 0; c < size; c += LANES) {
        vec k[4];
UNROLL
        for (int j = 0; j < 4; j++) k[j] = numbers_at(keys, TYPE, at[i + j] + c);
UNROLL
        for (int g = 0; g < G; g++) {
          vec q = v_load(query + g * size + c);
UNROLL
          for (int j = 0; j < 4; j++) sum[g][j] = v_fma(q, k[j], sum[g][j]);
        }
      }
UNROLL
      for (int g = 0; g < G; g++) v_four_sums(sum[g][0], sum[g][1], sum[g][2], sum[g][3], weight + g * TILE + i);
    }
    for (int g = 0; g < G; g++) {
      float *w = weight + g * TILE;
      for (int i = some; i < TILE; i++) w[i] = -INFINITY;
      vec high = v_all(most[g]), sum = v_zero();
      for (int i = 0; i < TILE; i += LANES) high = v_max(v_load(w + i), high);
      const float peak = v_most(high), base = peak == -INFINITY ? 0.0f : peak;
      for (int i = 0; i < TILE; i += LANES) {
        vec e = v_exp(v_add(v_load(w + i), v_all(-base)));
        v_store(w + i, e);
        sum = v_add(sum, e);
      }
      float lane[LANES];
      v_store(lane, v_exp(v_all(most[g] - base)));
      const float shrink = most[g] == -INFINITY ? 0.0f : lane[0];
      total[g] = fmaf(total[g], shrink, v_sum(sum));
      most[g] = peak;
      for (int c = 0; c < size; c += LANES) v_store(out + g * size + c, v_mul(v_load(out + g * size + c), v_all(shrink)));
    }
    /* Four columns of sixteen at a time stay in registers over the tile. */
    for (int c = 0; c < columns; c += 4) {
      const int wide = columns - c < 4 ? columns - c : 4;
      vec sum[SHARE][4];
      if (wide == 4) {
UNROLL
        for (int g = 0; g < G; g++)
UNROLL
          for (int j = 0; j < 4; j++) sum[g][j] = v_load(out + g * size + (c + j) * LANES);
        for (int i = 0; i < some; i++) {
UNROLL
          for (int j = 0; j < 4; j++) {
            vec v = numbers_at(values, TYPE, at[i] + (c + j) * LANES);
UNROLL
            for (int g = 0; g < G; g++) sum[g][j] = v_fma(v_all(weight[g * TILE + i]), v, sum[g][j]);
          }
        }
UNROLL
        for (int g = 0; g < G; g++)
UNROLL
          for (int j = 0; j < 4; j++) v_store(out + g * size + (c + j) * LANES, sum[g][j]);
      } else
        for (int j = 0; j < wide; j++)
          for (int g = 0; g < G; g++) {
            vec one = v_load(out + g * size + (c + j) * LANES);
            for (int i = 0; i < some; i++)
              one = v_fma(v_all(weight[g * TILE + i]), numbers_at(values, TYPE, at[i] + (c + j) * LANES), one);
            v_store(out + g * size + (c + j) * LANES, one);
          }
    }
  }
  for (int g = 0; g < G; g++) out[G * size + g] = total[g], out[G * size + G + g] = most[g];
}

#if defined(SPECDEC_REGISTERS)
#define HEADS(TYPE, G) few_heads(a, TYPE, G, query, own, low, high, a->counts[row], kv_head, cold, out, room)
#define GROUPS(TYPE) \
  switch (g) { \
    case 1: HEADS(TYPE, 1); break; \
    case 2: HEADS(TYPE, 2); break; \
    case 3: HEADS(TYPE, 3); break; \
    default: HEADS(TYPE, 4); \
  }
#define ALL_GROUPS \
  if (a->type == AS_F32) { GROUPS(AS_F32) } else if (a->type == AS_BF16) { GROUPS(AS_BF16) } else { GROUPS(AS_F16) }
#else
#define ALL_GROUPS few_heads(a, a->type, g, query, own, low, high, a->counts[row], kv_head, cold, out, room);
#endif

/* What all heads of a key head make of one part: few_heads' results for the first SHARE heads, then for the next, and so on. */
static void one_part(const attention *a, int row, int kv_head, int part, int cold, float *out, float *query, float *room) {
  const int of = a->heads / a->kv_heads, size = a->head_dim, parts = parts_of(a->counts[row]);
  const int64_t *own = a->dense ? NULL : a->slots + a->starts[row];
  const int64_t low = part_at(a->counts[row], parts, part), high = part_at(a->counts[row], parts, part + 1);
  for (int first = 0; first < of; first += SHARE) {
    const int g = of - first < SHARE ? of - first : SHARE;
    get_numbers(a->query, a->type, row * a->stride + ((int64_t)kv_head * of + first) * size, query, g * size);
    for (int i = 0; i < g * size; i++) query[i] *= a->scale;
    ALL_GROUPS
    out += g * (size + 2);
  }
}

/* The parts of a row and key head, `apart` floats from one another, put together in their order. */
static void join(const attention *a, int row, int kv_head, float *from, int64_t apart) {
  const int of = a->heads / a->kv_heads, size = a->head_dim, parts = parts_of(a->counts[row]);
  for (int first = 0; first < of; first += SHARE) {
    const int g = of - first < SHARE ? of - first : SHARE;
    for (int head = 0; head < g; head++) {
      float *const out = from + head * size, *const total = from + g * size + head, *const most = total + g;
      for (int part = 1; part < parts; part++) {
        const float one = *most, other = most[part * apart], peak = one > other ? one : other, base = peak == -INFINITY ? 0.0f : peak;
        float lane[2][LANES];
        v_store(lane[0], v_exp(v_all(one - base))), v_store(lane[1], v_exp(v_all(other - base)));
        const float keep = one == -INFINITY ? 0.0f : lane[0][0], add = other == -INFINITY ? 0.0f : lane[1][0];
        for (int i = 0; i < size; i += LANES) v_store(out + i, v_fma(v_load(out + part * apart + i), v_all(add), v_mul(v_load(out + i), v_all(keep))));
        *total = fmaf(total[part * apart], add, *total * keep), *most = peak;
      }
      for (int i = 0; i < size; i++) out[i] = *total == 0.0f ? 0.0f : out[i] / *total;
    }
    put_numbers(a->out, a->type, ((int64_t)row * a->heads + (int64_t)kv_head * of + first) * size, from, g * size);
    from += g * (size + 2);
  }
}

int specdec_attend(const attention *a) {
  const int of = a->heads / a->kv_heads, few = a->rows <= FEW, bytes = a->type == AS_F32 ? 4 : 2;
  int parts = 1;
  for (int r = 0; r < a->rows; r++) parts = parts_of(a->counts[r]) > parts ? parts_of(a->counts[r]) : parts;
  const int64_t width = (int64_t)a->kv_heads * a->head_dim, apart = ((int64_t)of * (a->head_dim + 2) + LANES - 1) / LANES * LANES;
  const int64_t own = SHARE * (a->head_dim + TILE) + 3 * LANES + (few ? 0 : parts * apart), shared = few ? (int64_t)a->rows * a->kv_heads * parts * apart : 0;
  float *const memory = malloc((size_t)((own * a->threads + shared + LANES) * 4));
  if (!memory) return 1;
  float *const base = (float *)(((uintptr_t)memory + 63) & ~(uintptr_t)63), *const results = base + own * a->threads; /* no two threads write one line */
#pragma omp parallel num_threads(a->threads)
  {
    float *const query = base + own * omp_get_thread_num(), *const room = query + SHARE * a->head_dim, *const mine = room + SHARE * TILE + 3 * LANES;
    int low, high;
    share(a->rows, 1, &low, &high);
    for (int r = low; r < high; r++)
      if (a->written[r] >= 0) {
        memcpy((char *)a->keys + a->written[r] * width * bytes, (const char *)a->key + r * a->stride * bytes, width * bytes);
        memcpy((char *)a->values + a->written[r] * width * bytes, (const char *)a->value + r * a->stride * bytes, width * bytes);
      }
#pragma omp barrier
    /* Rows of one sequence that read the same keys follow one another, on one thread as far as can be: the first brings them near. */
    const int items = a->heads ? a->rows * a->kv_heads : 0;
    share(few ? items * parts : items, 1, &low, &high);
    for (int item = low; item < high; item++) {
      const int row = item % a->rows, place = item / a->rows, known = item > low && row && (a->dense || a->starts[row] == a->starts[row - 1]);
      const int own_parts = parts_of(a->counts[row]); /* place: a key head, or where parts are shared a key head and a part */
      if (few) {
        if (place % parts < own_parts) one_part(a, row, place / parts, place % parts, !known, results + item * apart, query, room);
      } else {
        for (int part = 0; part < own_parts; part++) one_part(a, row, place, part, !known, mine + part * apart, query, room);
        join(a, row, place, mine, apart);
      }
    }
    if (few) {
#pragma omp barrier
      share(items, 1, &low, &high);
      for (int item = low; item < high; item++) join(a, item % a->rows, item / a->rows, results + ((int64_t)item / a->rows * parts * a->rows + item % a->rows) * apart, apart * a->rows);
    }
  }
  free(memory);
  return 0;
}
