;; world: schedule-policy feedback
;; Runs the rows in order; never returns when it is told of outcomes, but for the first time.
(module
  ;; {lifecycle}
  ;; {in-order}
  (global $calls (mut i32) (i32.const 0))
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows)))
  (func (export "millrace:policy/feedback@0.1.0#observe") (param i32 i32 i32)
    (global.set $heap (i32.const 4096))
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (if (i32.gt_u (global.get $calls) (i32.const 1))
      (then (loop $again (br $again))))))
