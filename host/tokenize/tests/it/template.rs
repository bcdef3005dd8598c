//! Chat templates: the hub's dialect, refusals, and templates that would run for ever.

use std::time::Instant;

use millrace_tokenize::{ChatMessage, ChatTemplate, TokenizeError};

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage { role: role.to_owned(), name: None, content: content.to_owned() }
}

fn render(source: &str, messages: &[ChatMessage]) -> Result<String, TokenizeError> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(messages)
}

fn rendered(source: &str) -> String {
    render(source, &[message("user", "hi"), message("assistant", "")]).unwrap()
}

#[test]
fn blocks_are_trimmed_as_the_hub_does() {
    let source = "{% for m in messages %}\n    {% if true %}\n{{ m.role }}:\n    {% endif %}\n{% endfor %}\nend\n";
    assert_eq!(rendered(source), "user:\nassistant:\nend");
}

#[test]
fn variables_of_the_hub() {
    assert_eq!(rendered("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}"), "<s></s>True");
    assert_eq!(rendered("{% if tools %}x{% endif %}{{ tools is none }} {{ documents is defined }}"), "True True");
    assert_eq!(rendered("{{ strftime_now is defined }}"), "False");
    assert_eq!(rendered("[{{ messages[1].content }}] [{{ messages[0]['content'] }}] {{ none }}"), "[] [hi] None");
}

#[test]
fn a_name_is_there_where_one_was_given() {
    let named = ChatMessage { name: Some("alice".to_owned()), ..message("user", "hi") };
    let source = "{% for m in messages %}{{ m.name | default('-') }}{{ m.name is defined }} {% endfor %}";
    assert_eq!(render(source, &[named, message("user", "hi")]).unwrap(), "aliceTrue -False ");
}

#[test]
fn json_is_pythons() {
    let source = r#"{{ {"b": [1, true, none], "a": "<é> & '"} | tojson }}"#;
    assert_eq!(rendered(source), r#"{"b": [1, true, null], "a": "<é> & '"}"#);
    assert_eq!(rendered("{{ [1, 2] | tojson(indent=2) }}"), "[\n  1,\n  2\n]");
}

#[test]
fn methods_and_statements_of_python() {
    assert_eq!(rendered("{{ ' x '.strip() }}{{ 'a</t>b'.split('</t>')[-1] }}{{ 'ab'.startswith('a') }}"), "xbTrue");
    assert_eq!(rendered("{% for k, v in {'z': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}"), "z1a2");
    assert_eq!(
        rendered("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}"),
        "user"
    );
    assert_eq!(
        rendered("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"),
        "2"
    );
    assert_eq!(rendered("{{ messages[::-1][0].role }}{{ messages[1:] | length }}"), "assistant1");
}

#[test]
fn generation_tags_are_passed_over() {
    assert_eq!(rendered("a {%- generation -%} b {% endgeneration %}\nc{% if 1 %}d{% endif %}{% raw %}{%{% endraw %}"), "ab cd{%");
}

#[test]
fn nothing_is_escaped() {
    assert_eq!(render("{{ messages[0].content }}", &[message("user", "<b> & \"'\" {{ x }}")]).unwrap(), "<b> & \"'\" {{ x }}");
}

#[test]
fn refusals_carry_the_templates_words_and_are_the_callers_fault() {
    let source = "{% for m in messages %}{% if m.role == 'tool_use' %}{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}";
    let error = render(source, &[message("tool_use", "")]).unwrap_err();
    assert!(matches!(&error, TokenizeError::TemplateRefused { message } if message == "roles must alternate"), "{error}");
    assert!(error.is_callers_fault());
    assert_eq!(render(source, &[message("user", "")]).unwrap(), "");
    // Also from within a macro.
    let nested = render("{% macro f() %}{{ raise_exception('no') }}{% endmacro %}{{ f() }}", &[]).unwrap_err();
    assert!(matches!(&nested, TokenizeError::TemplateRefused { message } if message == "no"), "{nested}");
}

#[test]
fn failures_are_errors() {
    for source in
        ["{{ messages[9].content }}", "{{ nothing.x }}", "{{ 'x' - 1 }}", "{{ strftime_now('%Y') }}", "{% include 'x' %}"]
    {
        let error = render(source, &[]).unwrap_err();
        assert!(matches!(error, TokenizeError::TemplateFailed { .. }), "{source}: {error}");
    }
    for source in ["{% for %}", "{{", "{% if x %}"] {
        assert!(matches!(ChatTemplate::new(source, "", ""), Err(TokenizeError::TemplateSyntax { .. })), "{source}");
    }
    let long = "x".repeat((1 << 20) + 1);
    assert!(matches!(ChatTemplate::new(&long, "", ""), Err(TokenizeError::TemplateSyntax { .. })));
}

#[test]
fn endless_templates_end() {
    let start = Instant::now();
    let loops =
        "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(matches!(render(loops, &[]).unwrap_err(), TokenizeError::TemplateOutOfFuel { .. }));
    let output = "{% for a in range(10000) %}{{ 'a' * 100000 }}{% endfor %}";
    assert!(matches!(render(output, &[]).unwrap_err(), TokenizeError::TemplateOutputTooLong { .. }));
    assert!(matches!(render("{{ 'a' * 1000000000 }}", &[]).unwrap_err(), TokenizeError::TemplateFailed { .. }));
    assert!(start.elapsed().as_secs() < 60);
}

#[test]
fn deep_templates_do_not_overflow_a_small_stack() {
    let run = || {
        let recursion = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
        assert!(matches!(render(recursion, &[]).unwrap_err(), TokenizeError::TemplateFailed { .. }));
        let ifs = "{% if 1 %}".repeat(10_000) + &"{% endif %}".repeat(10_000);
        assert!(matches!(ChatTemplate::new(&ifs, "", ""), Err(TokenizeError::TemplateSyntax { .. })));
        let parentheses = format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000));
        assert!(matches!(ChatTemplate::new(&parentheses, "", ""), Err(TokenizeError::TemplateSyntax { .. })));
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}
