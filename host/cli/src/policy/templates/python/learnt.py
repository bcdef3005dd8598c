{{#feedback}}
# What the policy has learnt: how many requests failed.
memory = {"learnt": 0}
FAILED = 3
{{/feedback}}
{{#unheard}}
# What the policy has learnt: how many decisions it made.
memory = {"learnt": 0}
{{/unheard}}
