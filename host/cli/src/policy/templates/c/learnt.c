{{#feedback}}

// What the policy has learnt: how many requests failed.
static uint32_t learnt;
{{/feedback}}
{{#unheard}}

// What the policy has learnt: how many decisions it made.
static uint32_t learnt;
{{/unheard}}
