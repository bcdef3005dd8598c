;; world: route-policy
;; Refuses everything with a message: of 100,000 bytes, or of a million where the request has no session.
(module
  ;; {lifecycle}
  ;; The arguments lie in memory: the request's session is an option at 16.
  (func (export "millrace:policy/route@0.1.0#decide") (param $arguments i32) (result i32)
    ;; decision at 256: refuse (2); status at 260, retry-after at 264, reason at 272, message at 276
    (i32.store8 (i32.const 256) (i32.const 2))
    (i32.store16 (i32.const 260) (i32.const 429))
    (i32.store8 (i32.const 264) (i32.const 0))
    (i32.store (i32.const 272) (i32.const 0))
    (i32.store (i32.const 276) (i32.const 500000))
    (i32.store (i32.const 280)
      (select (i32.const 100000) (i32.const 1000000) (i32.load8_u offset=16 (local.get $arguments))))
    (i32.const 256))
  (func (export "cabi_post_millrace:policy/route@0.1.0#decide") (param i32)
    (global.set $heap (i32.const 4096))))
