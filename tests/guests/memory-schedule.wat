;; world: schedule-policy feedback handover
;; Counts the outcomes that it is told of; plan.reason tells them. Hands the count over, and refuses memory that is not its own.
(module
  ;; {lifecycle}
  ;; {in-order}
  (global $told (mut i32) (i32.const 0))
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (i32.store (i32.const 284) (global.get $told))
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows)))
  (func (export "millrace:policy/feedback@0.1.0#observe") (param $rows i32) (param i32 i32)
    (global.set $told (i32.add (global.get $told) (local.get $rows)))
    (global.set $heap (i32.const 4096)))
  ;; list<u8> at 640: a mark and the count, at 648
  (func (export "millrace:policy/handover@0.1.0#save") (result i32)
    (i32.store (i32.const 640) (i32.const 648))
    (i32.store (i32.const 644) (i32.const 8))
    (i32.store (i32.const 648) (i32.const 0x6c6c696d))
    (i32.store (i32.const 652) (global.get $told))
    (i32.const 640))
  (data (i32.const 768) "not my memory")
  ;; result<_, string> at 700
  (func (export "millrace:policy/handover@0.1.0#restore") (param $saved i32) (param $len i32) (result i32)
    (global.set $heap (i32.const 4096))
    (i32.store (i32.const 704) (i32.const 768))
    (i32.store (i32.const 708) (i32.const 13))
    (i32.store8 (i32.const 700) (i32.const 1))
    ;; what is refused is taken all the same, which nobody must see
    (global.set $told (i32.const 999))
    (if (i32.eq (local.get $len) (i32.const 8))
      (then (if (i32.eq (i32.load (local.get $saved)) (i32.const 0x6c6c696d))
        (then
          (global.set $told (i32.load offset=4 (local.get $saved)))
          (i32.store8 (i32.const 700) (i32.const 0))))))
    (i32.const 700)))
