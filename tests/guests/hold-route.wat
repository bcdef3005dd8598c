;; world: route-policy
;; Holds every request as long as it may, again and again; the trial at load is held too, which is a good answer.
(module
  ;; {lifecycle}
  (func (export "millrace:policy/route@0.1.0#decide") (param $arguments i32) (result i32)
    ;; decision at 256: hold (1); milliseconds at 260
    (i32.store8 (i32.const 256) (i32.const 1))
    (i32.store (i32.const 260) (i32.const -1))
    (i32.const 256))
  (func (export "cabi_post_millrace:policy/route@0.1.0#decide") (param i32)
    (global.set $heap (i32.const 4096))))
