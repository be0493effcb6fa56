/* What lies between two attentions. */
#ifndef SPECDEC_STEP_H
#define SPECDEC_STEP_H

#include "rows.h"

typedef struct {
  int32_t rows, width, heads, kv_heads, head_dim, ffn, threads, type; /* type: of weights of norms, biases, and what attention is given */
  float eps;
  int32_t unused;
  const float *x; /* [rows, width] */
  float *out;     /* [rows, width]: x after the end of a block; not written where there is none */
  /* the end of a block, where `attended` is not NULL */
  const void *attended; /* [rows, heads head_dim] */
  const matrix *output, *gate_up, *down;
  const void *ffn_norm;
  /* the beginning of one, where `qkv` is not NULL */
  const matrix *qkv;
  const void *attention_norm, *bias, *q_norm, *k_norm;
  const float *cos, *sin; /* [rows, head_dim / 2] */
  void *turned;           /* [rows, heads + 2 kv_heads, head_dim] */
  /* the head, where it is not NULL */
  const matrix *head;
  const void *norm;
  float *logits; /* [rows, vocab] */
} step;

/* 0, or 1 where there is no memory. */
int specdec_step(const step *s);

#endif
