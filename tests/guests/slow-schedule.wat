;; world: schedule-policy
;; Counts to five hundred million, some 500 ms, before it runs the rows in order, in every step but step 0.
(module
  ;; {lifecycle}
  ;; {in-order}
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (local $count i32)
    (if (i64.ne (local.get $step) (i64.const 0))
      (then
        (loop $again
          (local.set $count (i32.add (local.get $count) (i32.const 1)))
          ;; Stored, so that the loop cannot be left out.
          (i32.store (i32.const 512) (local.get $count))
          (br_if $again (i32.lt_u (local.get $count) (i32.const 500000000))))))
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows))))
