;; world: schedule-policy
;; Registers a thousand counters in `init`, of which the host takes as many as it allows, and counts in the last.
(module
  (import "millrace:policy/metrics@0.1.0" "counter" (func $counter (param i32 i32 i32)))
  (import "millrace:policy/metrics@0.1.0" "add" (func $add (param i32 i64)))
  ;; What every guest has. Answers lie at fixed places below 4096; facts, and lists of answers after them, from 4096 on,
  ;; starting over after each call.
  (memory (export "memory") 32)
  (global $heap (mut i32) (i32.const 4096))
  (data (i32.const 16) "test-guest")
  (data (i32.const 32) "0.1.0")
  ;; result<info, string>: ok, name, version, no wants
  (data (i32.const 64) "\00\00\00\00\10\00\00\00\0a\00\00\00\20\00\00\00\05\00\00\00\00\00\00\00\00\00\00\00")
  (func $realloc (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
    (global.set $heap (i32.add (local.get $at) (local.get $size)))
    (local.get $at))
  (data (i32.const 512) "m____")
  (global $last (mut i32) (i32.const -1))
  (func (export "millrace:policy/lifecycle@0.1.0#init") (param i32 i32) (result i32)
    (local $i i32)
    (loop $next
      ;; three letters that tell the number
      (i32.store8 (i32.const 513) (i32.add (i32.const 97) (i32.rem_u (local.get $i) (i32.const 10))))
      (i32.store8 (i32.const 514) (i32.add (i32.const 97) (i32.rem_u (i32.div_u (local.get $i) (i32.const 10)) (i32.const 10))))
      (i32.store8 (i32.const 515) (i32.add (i32.const 97) (i32.div_u (local.get $i) (i32.const 100))))
      (call $counter (i32.const 512) (i32.const 5) (i32.const 600))
      (if (i32.eqz (i32.load8_u (i32.const 600))) (then (global.set $last (i32.load (i32.const 604)))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (i32.const 1000))))
    (global.set $heap (i32.const 4096))
    (i32.const 64))
  ;; result<_, list<string>>: ok, at 128, which is zero
  (func (export "millrace:policy/lifecycle@0.1.0#check-config") (param i32 i32) (result i32)
    (global.set $heap (i32.const 4096))
    (i32.const 128))
  ;; {in-order}
  (func (export "millrace:policy/schedule@0.1.0#plan-step")
    (param $stage i32) (param $step i64) (param $tokens i32) (param $sequences i32) (param $free i32) (param $total i32)
    (param $page_tokens i32) (param $step_us i32) (param $rows i32) (param $columns i32) (param $columns_len i32)
    (param $tenants i32) (param $tenant_columns i32) (param $tenant_columns_len i32) (result i32)
    (call $add (global.get $last) (i64.const 1))
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows))))
