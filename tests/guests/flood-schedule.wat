;; world: schedule-policy
;; Logs 1,000 long lines in every step, then runs the rows in order.
(module
  (import "millrace:policy/log@0.1.0" "log" (func $log (param i32 i32 i32)))
  ;; {lifecycle}
  ;; {in-order}
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (local $i i32)
    (loop $again
      ;; level info; 2,000 zeros from far behind the facts
      (call $log (i32.const 1) (i32.const 1500000) (i32.const 2000))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $i) (i32.const 1000))))
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows))))
