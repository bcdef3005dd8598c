;; world: precision-policy
;; Chooses a precision that does not exist, for every ask whose prompt is not 100 tokens long (as the trial asks are).
(module
  ;; {lifecycle}
  ;; An ask has 36 bytes, prompt-tokens at 12; a choice has 12, precision at 0.
  (func (export "millrace:policy/precision@0.1.0#choose") (param $asks i32) (param $count i32)
    (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (local $at i32) (local $i i32)
    (local.set $at (call $realloc (i32.const 0) (i32.const 0) (i32.const 4) (i32.mul (local.get $count) (i32.const 12))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $i) (local.get $count)))
        (memory.fill (i32.add (local.get $at) (i32.mul (local.get $i) (i32.const 12))) (i32.const 0) (i32.const 12))
        (if (i32.ne (i32.load offset=12 (i32.add (local.get $asks) (i32.mul (local.get $i) (i32.const 36)))) (i32.const 100))
          (then (i32.store (i32.add (local.get $at) (i32.mul (local.get $i) (i32.const 12))) (local.get $rows))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (i32.store (i32.const 256) (local.get $at))
    (i32.store (i32.const 260) (local.get $count))
    (i32.const 256))
  (func (export "cabi_post_millrace:policy/precision@0.1.0#choose") (param i32)
    (global.set $heap (i32.const 4096))))
