/* A team of threads: the OpenMP runtime's, which is the one that torch has loaded. */
#ifndef SPECDEC_TEAM_H
#define SPECDEC_TEAM_H

#include <omp.h>
#include <stdatomic.h>

#include "vector.h"

/* The part of `total` things that one of a team works on, in whole bands, so that no two threads write one line of memory. */
INLINE void share(int total, int band, int *low, int *high) {
  const int64_t bands = (total + band - 1) / band, of = omp_get_num_threads(), which = omp_get_thread_num();
  *low = (int)(bands * which / of) * band, *high = (int)(bands * (which + 1) / of) * band;
  if (*low > total) *low = total;
  if (*high > total) *high = total;
}

/* Work on `total` things that a team shares: seven eighths of an even share are each thread's own, the rest is taken in pieces by whoever is free, since
a thread that the system has put aside for a moment would keep all others waiting. Whole bands throughout. */
typedef struct {
  int total, band;
  atomic_int taken;
} work;

#define PIECE 32

INLINE void own_part(const work *w, int which, int of, int *low, int *split, int *high) {
  const int64_t bands = (w->total + w->band - 1) / w->band, first = bands * which / of, last = bands * (which + 1) / of;
  *low = (int)first * w->band, *split = (int)(first + (last - first) * 7 / 8) * w->band, *high = (int)last * w->band;
  if (*high > w->total) *high = w->total;
  if (*split > *high) *split = *high;
}

/* The next part for this thread; `begun` is 0 before its first. 0 where nothing is left. */
INLINE int take(work *w, int *begun, int *low, int *high) {
  const int of = omp_get_num_threads(), piece = (PIECE + w->band - 1) / w->band * w->band;
  int start, split, stop;
  if (!*begun) {
    *begun = 1;
    own_part(w, omp_get_thread_num(), of, &start, &split, &stop);
    *low = start, *high = split;
    if (start < split) return 1;
  }
  for (int number = atomic_fetch_add(&w->taken, 1), before = 0, which = 0; which < of; which++) {
    own_part(w, which, of, &start, &split, &stop);
    const int pieces = (stop - split + piece - 1) / piece;
    if (number < before + pieces) {
      *low = split + (number - before) * piece, *high = *low + piece < stop ? *low + piece : stop;
      return 1;
    }
    before += pieces;
  }
  return 0;
}

/* Numbers of any float type as float32, and back. */
enum { AS_F32, AS_BF16, AS_F16 };

INLINE float number_at(const void *p, int type, int64_t i) {
  if (type == AS_F32) return ((const float *)p)[i];
  return type == AS_BF16 ? bfloat_to_float(((const uint16_t *)p)[i]) : half_to_float(((const uint16_t *)p)[i]);
}


/* Many of them; the type is looked at once. */
INLINE void put_numbers(void *p, int type, int64_t at, const float *from, int count) {
  if (type == AS_F32) memcpy((float *)p + at, from, sizeof(float) * count);
  else if (type == AS_BF16)
    for (int i = 0; i < count; i++) ((uint16_t *)p)[at + i] = float_to_bfloat(from[i]);
  else
    for (int i = 0; i < count; i++) ((uint16_t *)p)[at + i] = float_to_half(from[i]);
}

INLINE void get_numbers(const void *p, int type, int64_t at, float *to, int64_t count) {
  if (type == AS_F32) memcpy(to, (const float *)p + at, sizeof(float) * count);
  else if (type == AS_BF16)
    for (int64_t i = 0; i < count; i++) to[i] = bfloat_to_float(((const uint16_t *)p)[at + i]);
  else
    for (int64_t i = 0; i < count; i++) to[i] = half_to_float(((const uint16_t *)p)[at + i]);
}

INLINE vec numbers_at(const void *p, int type, int64_t i) {
  if (type == AS_F32) return v_load((const float *)p + i);
  return type == AS_BF16 ? v_from_bf16((const uint16_t *)p + i) : v_from_f16((const uint16_t *)p + i);
}

#endif
