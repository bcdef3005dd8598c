;; world: schedule-policy handover
;; Runs the rows in order; traps in `save` once it has planned another step than step 0.
(module
  ;; {lifecycle}
  ;; {in-order}
  (global $served (mut i32) (i32.const 0))
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (if (i64.ne (local.get $step) (i64.const 0)) (then (global.set $served (i32.const 1))))
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows)))
  ;; list<u8> at 640
  (func (export "millrace:policy/handover@0.1.0#save") (result i32)
    (i32.store (i32.const 640) (i32.const 648))
    (i32.store (i32.const 644) (i32.const 0))
    (if (global.get $served) (then unreachable))
    (i32.const 640))
  ;; result<_, string> at 700: ok
  (func (export "millrace:policy/handover@0.1.0#restore") (param $saved i32) (param $len i32) (result i32)
    (global.set $heap (i32.const 4096))
    (i32.const 700)))
