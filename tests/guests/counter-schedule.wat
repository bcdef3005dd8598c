;; world: schedule-policy
;; Counts its calls in `state` (one byte, plan.reason tells it) and in a metric; traps if the clock moves within a call.
(module
  (import "millrace:policy/clock@0.1.0" "now-us" (func $now (result i64)))
  (import "millrace:policy/random@0.1.0" "next-u64" (func $random (result i64)))
  (import "millrace:policy/state@0.1.0" "get" (func $get (param i32 i32 i32)))
  (import "millrace:policy/state@0.1.0" "set" (func $set (param i32 i32 i32 i32 i32)))
  (import "millrace:policy/metrics@0.1.0" "counter" (func $counter (param i32 i32 i32)))
  (import "millrace:policy/metrics@0.1.0" "gauge" (func $gauge (param i32 i32 i32)))
  (import "millrace:policy/metrics@0.1.0" "add" (func $add (param i32 i64)))
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
  (data (i32.const 512) "calls")
  (data (i32.const 520) "random")
  (global $calls (mut i32) (i32.const -1))
  (global $last (mut i32) (i32.const -1))
  (func (export "millrace:policy/lifecycle@0.1.0#init") (param i32 i32) (result i32)
    (global.set $heap (i32.const 4096))
    ;; result<u32, string> at 600: the handle at 604
    (call $counter (i32.const 512) (i32.const 5) (i32.const 600))
    (if (i32.load8_u (i32.const 600)) (then unreachable))
    (global.set $calls (i32.load (i32.const 604)))
    (call $gauge (i32.const 520) (i32.const 6) (i32.const 600))
    (if (i32.load8_u (i32.const 600)) (then unreachable))
    (global.set $last (i32.load (i32.const 604)))
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
    (local $now i64) (local $count i32)
    (local.set $now (call $now))
    ;; option<list<u8>> at 600: the list at 604
    (call $get (i32.const 512) (i32.const 5) (i32.const 600))
    (if (i32.load8_u (i32.const 600)) (then (local.set $count (i32.load8_u (i32.load (i32.const 604))))))
    (local.set $count (i32.add (local.get $count) (i32.const 1)))
    (i32.store8 (i32.const 700) (local.get $count))
    ;; result<_, string> at 600
    (call $set (i32.const 512) (i32.const 5) (i32.const 700) (i32.const 1) (i32.const 600))
    (if (i32.load8_u (i32.const 600)) (then unreachable))
    (call $add (global.get $calls) (i64.const 1))
    ;; 32 bits of the call's random number, so that a test can read it exactly
    (call $gauge_set (global.get $last) (f64.convert_i64_u (i64.shr_u (call $random) (i64.const 32))))
    (if (i64.ne (call $now) (local.get $now)) (then unreachable))
    (i32.store (i32.const 284) (local.get $count))
    (call $in_order (local.get $stage) (local.get $tokens) (local.get $sequences) (local.get $rows))))
