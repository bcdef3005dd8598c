;; world: schedule-policy
;; Of every ten steps but step 0, by lot: one traps, one never returns, the others run the rows in order.
(module
  (import "millrace:policy/random@0.1.0" "next-u64" (func $random (result i64)))
  ;; {lifecycle}
  ;; {in-order}
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (local $lot i64)
    (local.set $lot (i64.rem_u (i64.shr_u (call $random) (i64.const 33)) (i64.const 10)))
    (if (i64.ne (local.get $step) (i64.const 0))
      (then
        (if (i64.eqz (local.get $lot)) (then unreachable))
        (if (i64.eq (local.get $lot) (i64.const 1)) (then (loop $again (br $again))))))
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows))))
