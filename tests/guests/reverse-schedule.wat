;; world: schedule-policy
;; Runs the host's rows in reverse order, as many as the budget has sequences, in decode also tokens.
(module
  ;; {lifecycle}
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (local $count i32) (local $at i32) (local $i i32)
    (local.set $count (local.get $rows))
    (if (i32.gt_u (local.get $count) (local.get $sequences)) (then (local.set $count (local.get $sequences))))
    (if (i32.and (local.get $stage) (i32.gt_u (local.get $count) (local.get $tokens)))
      (then (local.set $count (local.get $tokens))))
    (local.set $at (call $realloc (i32.const 0) (i32.const 0) (i32.const 4) (i32.mul (local.get $count) (i32.const 4))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $i) (local.get $count)))
        (i32.store (i32.add (local.get $at) (i32.mul (local.get $i) (i32.const 4)))
          (i32.sub (i32.sub (local.get $rows) (local.get $i)) (i32.const 1)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    ;; plan at 256: run, and nothing else
    (i32.store (i32.const 256) (local.get $at))
    (i32.store (i32.const 260) (local.get $count))
    (i32.const 256))
  (func (export "cabi_post_millrace:policy/schedule@0.1.0#plan-step") (param i32)
    (global.set $heap (i32.const 4096))))
