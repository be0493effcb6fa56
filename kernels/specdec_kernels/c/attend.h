/* Attention of a few rows over keys and values that lie anywhere. */
#ifndef SPECDEC_ATTEND_H
#define SPECDEC_ATTEND_H

#include "team.h"

typedef struct {
  int32_t rows, heads, kv_heads, head_dim, threads, type;
  float scale;
  int32_t dense; /* row r sees slots 0 to counts[r] - 1, and slots are not read */
  const void *query, *key, *value; /* new rows, `stride` numbers apart */
  int64_t stride;
  void *keys, *values;      /* the cache of a layer: [slots, kv_heads, head_dim] */
  const int64_t *written;   /* [rows]: the slot of each new row; negative: none */
  const int64_t *slots;     /* the slots that rows see */
  const int64_t *starts;    /* [rows]: where a row's begin in them */
  const int64_t *counts;    /* [rows]: how many it sees */
  void *out;                /* [rows, heads, head_dim] */
} attention;

/* Writes the new rows to their slots, then attends. head_dim must be a multiple of 16. 0, or 1 where there is no memory. */
int specdec_attend(const attention *a);

#endif
