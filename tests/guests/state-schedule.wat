;; world: schedule-policy
;; Sets six hundred keys of a thousand bytes in every step; plan.reason tells how many the host took.
(module
  (import "millrace:policy/state@0.1.0" "set" (func $set (param i32 i32 i32 i32 i32)))
  ;; {lifecycle}
  ;; {in-order}
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (local $i i32) (local $taken i32) (local $heap i32)
    (local.set $heap (global.get $heap))
    (loop $next
      (i32.store8 (i32.const 600) (i32.add (i32.const 97) (i32.rem_u (local.get $i) (i32.const 25))))
      (i32.store8 (i32.const 601) (i32.add (i32.const 97) (i32.div_u (local.get $i) (i32.const 25))))
      ;; result<_, string> at 616
      (call $set (i32.const 600) (i32.const 2) (i32.const 1500000) (i32.const 1000) (i32.const 616))
      (if (i32.eqz (i32.load8_u (i32.const 616))) (then (local.set $taken (i32.add (local.get $taken) (i32.const 1)))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (global.set $heap (local.get $heap))
      (br_if $next (i32.lt_u (local.get $i) (i32.const 600))))
    (i32.store (i32.const 284) (local.get $taken))
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows))))
