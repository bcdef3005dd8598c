;; world: schedule-policy feedback
;; Runs the rows in order; logs 1,000 long lines whenever it is told of outcomes.
(module
  (import "millrace:policy/log@0.1.0" "log" (func $log (param i32 i32 i32)))
  ;; {lifecycle}
  ;; {in-order}
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows)))
  (func (export "millrace:policy/feedback@0.1.0#observe") (param i32 i32 i32)
    (local $left i32)
    (global.set $heap (i32.const 4096))
    (local.set $left (i32.const 1000))
    (loop $again
      (call $log (i32.const 1) (i32.const 8192) (i32.const 2000))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $again (local.get $left)))))
