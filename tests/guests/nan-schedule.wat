;; world: schedule-policy
;; Sets its gauge to 1.5, then to NaN and to infinity, in every step.
(module
  (import "millrace:policy/metrics@0.1.0" "gauge" (func $gauge (param i32 i32 i32)))
  (import "millrace:policy/metrics@0.1.0" "set" (func $gauge_set (param i32 f64)))
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
  (data (i32.const 512) "share")
  (global $gauge (mut i32) (i32.const -1))
  (func (export "millrace:policy/lifecycle@0.1.0#init") (param i32 i32) (result i32)
    (global.set $heap (i32.const 4096))
    ;; result<u32, string> at 600: the handle at 604
    (call $gauge (i32.const 512) (i32.const 5) (i32.const 600))
    (if (i32.load8_u (i32.const 600)) (then unreachable))
    (global.set $gauge (i32.load (i32.const 604)))
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
    (call $gauge_set (global.get $gauge) (f64.const 1.5))
    (call $gauge_set (global.get $gauge) (f64.const nan))
    (call $gauge_set (global.get $gauge) (f64.const inf))
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows))))
