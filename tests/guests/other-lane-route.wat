;; world: route-policy
;; Prefers the last lane, then the one before it, and so on. The trial decision at load is answered the same way.
(module
  ;; {lifecycle}
  ;; The arguments lie in memory: request (64 bytes), lanes (rows at 64), tenants.
  (func (export "millrace:policy/route@0.1.0#decide") (param $arguments i32) (result i32)
    (local $rows i32) (local $at i32) (local $i i32)
    (local.set $rows (i32.load offset=64 (local.get $arguments)))
    (local.set $at (call $realloc (i32.const 0) (i32.const 0) (i32.const 4) (i32.mul (local.get $rows) (i32.const 4))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $i) (local.get $rows)))
        (i32.store (i32.add (local.get $at) (i32.mul (local.get $i) (i32.const 4)))
          (i32.sub (i32.sub (local.get $rows) (local.get $i)) (i32.const 1)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    ;; decision at 256: forward (0), lanes at 260, no priority, reason 0
    (i32.store (i32.const 260) (local.get $at))
    (i32.store (i32.const 264) (local.get $rows))
    (i32.const 256))
  (func (export "cabi_post_millrace:policy/route@0.1.0#decide") (param i32)
    (global.set $heap (i32.const 4096))))
