;; world: schedule-policy
;; Grows its table until it is refused, then traps, in every step but step 0.
(module
  ;; {lifecycle}
  ;; {in-order}
  (table 1 funcref)
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (if (i64.eqz (local.get $step))
      (then (return (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows)))))
    (loop $more (br_if $more (i32.ne (table.grow (ref.null func) (i32.const 4096)) (i32.const -1))))
    unreachable))
