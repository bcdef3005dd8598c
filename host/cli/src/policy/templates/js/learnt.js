{{#feedback}}
// What the policy has learnt: how many requests failed.
let learnt = 0;
const FAILED = 3;
{{/feedback}}
{{#unheard}}
// What the policy has learnt: how many decisions it made.
let learnt = 0;
{{/unheard}}
