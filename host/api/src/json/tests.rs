//! Tables of bodies and what becomes of them. Bad ones come from the bug lists of other servers.

use millrace_node::{ChatMessage, Prompt};

use super::*;
use crate::error::ApiError;

const MESSAGES: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

fn chat(body: &str) -> Result<Parsed, ApiError> {
    parse_chat(body, &Limits::default())
}

/// A chat body with one more field.
fn with(field: &str) -> String {
    format!("{{{MESSAGES},{field}}}")
}

fn completion(body: &str) -> Result<Parsed, ApiError> {
    parse_completion(body, &Limits::default())
}

fn assert_refused(result: Result<Parsed, ApiError>, param: Option<&str>, what: &str) {
    let error = result.expect_err(what);
    assert_eq!(error.status.as_u16(), 400, "{what}: {error:?}");
    assert_eq!(error.param.as_deref(), param, "{what}: {}", error.message);
    assert!(error.message.len() < 400, "{what}: the message echoes the body");
}

#[test]
fn bodies_that_are_no_object_are_refused() {
    let deep = "[".repeat(100_000);
    let bodies = ["", " ", "null", "[]", "\"text\"", "1", "{", "{}}", "{\"messages\"}", "\u{feff}{}", &deep];
    for body in bodies {
        assert_refused(chat(body), None, &body.chars().take(20).collect::<String>());
    }
    for body in ["", " \n"] {
        assert_eq!(chat(body).unwrap_err().message, "The request body is empty: send a JSON object.");
    }
    assert_refused(chat("{}"), Some("messages"), "{}");
    assert_refused(completion("{}"), Some("prompt"), "{}");
    assert_refused(chat(r#""my secret prompt""#), None, "a string");
    assert!(!chat(r#""my secret prompt""#).unwrap_err().message.contains("secret"));
}

#[test]
fn a_known_field_comes_once() {
    assert_refused(chat(&with(r#""n":1,"n":1000000"#)), Some("n"), "n twice");
    assert_refused(chat(&with(MESSAGES)), Some("messages"), "messages twice");
    assert_refused(chat(&with(r#""\u006e":1,"n":1"#)), Some("n"), "n twice, once escaped");
    let message = r#"{"messages":[{"role":"user","content":"a","content":"b"}]}"#;
    assert_refused(chat(message), Some("messages[0].content"), "content twice");
}

#[test]
fn unknown_fields_pass_whatever_they_hold() {
    let deep = format!("\"x\":{}{}", "[".repeat(50_000), "]".repeat(50_000));
    for field in [r#""x":{"a":1}"#, r#""user":"someone""#, r#""x":1e400"#, r#""metadata":null,"made_up":true"#, &deep] {
        assert!(chat(&with(field)).is_ok(), "{}", field.chars().take(30).collect::<String>());
    }
}

#[test]
fn null_is_absent() {
    let fields = [
        "model",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "priority",
        "deadline_ms",
        "n",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "response_format",
        "logit_bias",
        "frequency_penalty",
        "presence_penalty",
        "min_tokens",
    ];
    for field in fields {
        let parsed = chat(&with(&format!("\"{field}\":null"))).unwrap_or_else(|e| panic!("{field}: {}", e.message));
        assert_eq!(parsed, chat(&format!("{{{MESSAGES}}}")).unwrap(), "{field}");
    }
}

#[test]
fn numbers_keep_to_their_ranges() {
    let bad = [
        ("temperature", "-0.1 2.1 1e308 NaN Infinity \"1\" true [] 1e400"),
        ("top_p", "0 -1 1.01 \"0.5\""),
        ("top_k", "-2 1.5 4294967296 \"3\""),
        ("min_p", "-0.1 1.1"),
        ("seed", "9223372036854775808 -9223372036854775809 1.5 \"7\""),
        ("max_tokens", "0 -1 4294967296 9223372036854775808 1.5 \"abc\" 1e2 true"),
        ("max_completion_tokens", "0 -1"),
        ("priority", "2147483648 1.5"),
        ("deadline_ms", "0 -1 1.5 86400001 \"7\""),
        ("n", "0 -1 2 1000000000 4294967296 1.5 \"1\""),
        ("min_tokens", "1 -1"),
        ("best_of", "2"),
        ("frequency_penalty", "0.5 -2"),
        ("presence_penalty", "2"),
        ("repetition_penalty", "1.1 0"),
        ("truncate_prompt_tokens", "1 -1"),
    ];
    for (field, values) in bad {
        for value in values.split(' ') {
            let result = chat(&with(&format!("\"{field}\":{value}")));
            // What is no JSON is the whole body's fault.
            let param = if matches!(value, "NaN" | "Infinity") { None } else { Some(field) };
            assert_refused(result, param, &format!("{field}: {value}"));
        }
    }
    let digits = format!("\"max_tokens\":{}", "9".repeat(1_000_000));
    assert_refused(chat(&with(&digits)), Some("max_tokens"), "a million digits");
    let good = [
        ("temperature", "0 0.0 -0.0 1e-400 2 1"),
        ("top_p", "1 0.00001 1e-320"),
        ("top_k", "-1 0 1 50"),
        ("min_p", "0 1 0.5"),
        ("seed", "0 -1 9223372036854775807 -9223372036854775808"),
        ("max_tokens", "1 4294967295"),
        ("priority", "-2147483648 7"),
        ("deadline_ms", "1 86400000"),
        ("n", "1 1.0"),
        ("frequency_penalty", "0 0.0 -0.0"),
        ("repetition_penalty", "1 1.0"),
    ];
    for (field, values) in good {
        for value in values.split(' ') {
            let body = with(&format!("\"{field}\":{value}"));
            assert!(chat(&body).is_ok(), "{field}: {value}: {:?}", chat(&body).err());
        }
    }
    let parsed = chat(&with(r#""top_p":1e-320,"seed":-1,"top_k":-1"#)).unwrap().request.sampling;
    assert!(parsed.top_p.unwrap() > 0.0);
    assert_eq!((parsed.seed, parsed.top_k), (Some(u64::MAX), 0));
}

#[test]
fn both_names_of_max_tokens_mean_the_same() {
    let of = |field: &str| chat(&with(field)).map(|p| p.request.max_tokens);
    assert_eq!(of(r#""max_tokens":5"#).unwrap(), Some(5));
    assert_eq!(of(r#""max_completion_tokens":6"#).unwrap(), Some(6));
    assert_eq!(of(r#""max_tokens":7,"max_completion_tokens":7"#).unwrap(), Some(7));
    assert!(of(r#""max_tokens":7,"max_completion_tokens":8"#).is_err());
    assert_eq!(of(r#""x":0"#).unwrap(), None);
    assert_eq!(completion(r#"{"prompt":"a"}"#).unwrap().request.max_tokens, Some(16));
    assert_eq!(completion(r#"{"prompt":"a","max_tokens":3}"#).unwrap().request.max_tokens, Some(3));
}

#[test]
fn stop_is_a_string_or_a_short_list() {
    let of = |field: &str| chat(&with(field)).map(|p| p.request.stop);
    assert_eq!(of(r#""stop":"\nObservation:""#).unwrap(), ["\nObservation:"]);
    assert_eq!(of(r#""stop":["a","ab","é"]"#).unwrap(), ["a", "ab", "é"]);
    assert_eq!(of(r#""stop":[]"#).unwrap(), [""; 0]);
    let none = Limits { stop_strings: 0, ..Limits::default() };
    for field in [r#""stop":"x""#, r#""stop":["x"]"#] {
        assert_refused(parse_chat(&with(field), &none), Some("stop"), field);
    }
    assert!(parse_chat(&with(r#""stop":[]"#), &none).is_ok());
    let many = format!("\"stop\":[{}]", vec!["\"x\""; 1_000_000].join(","));
    let long = format!("\"stop\":\"{}\"", "y".repeat(1 << 20));
    for field in
        [r#""stop":"""#, r#""stop":[""]"#, r#""stop":[1]"#, r#""stop":[["a"]]"#, r#""stop":{}"#, r#""stop":1"#, &many, &long]
    {
        assert_refused(chat(&with(field)), Some("stop"), &field.chars().take(40).collect::<String>());
    }
    assert_refused(chat(&with(r#""stop":"\ud800""#)), Some("stop"), "half a surrogate pair");
    let ids = chat(&with(r#""stop_token_ids":[0,151645]"#)).unwrap().request.stop_token_ids;
    assert_eq!(ids, [0, 151_645]);
    let many = format!("\"stop_token_ids\":[{}]", vec!["1"; 1000].join(","));
    for field in [r#""stop_token_ids":[-1]"#, r#""stop_token_ids":[4294967296]"#, r#""stop_token_ids":["1"]"#, &many] {
        assert_refused(chat(&with(field)), Some("stop_token_ids"), field);
    }
}

#[test]
fn streaming_options_belong_to_a_stream() {
    let of = |field: &str| chat(&with(field)).map(|p| (p.stream, p.request.streaming));
    assert_eq!(of(r#""stream":false"#).unwrap(), (Stream::Off, false));
    assert_eq!(of(r#""stream":true"#).unwrap(), (Stream::On(Usage::Nowhere), true));
    assert_eq!(of(r#""stream":true,"stream_options":{}"#).unwrap().0, Stream::On(Usage::Nowhere));
    assert_eq!(of(r#""stream":true,"stream_options":{"include_usage":true}"#).unwrap().0, Stream::On(Usage::Last));
    let both = r#""stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    assert_eq!(of(both).unwrap().0, Stream::On(Usage::Everywhere));
    assert_refused(chat(&with(r#""stream":"yes""#)), Some("stream"), "yes");
    assert_refused(chat(&with(r#""stream":1"#)), Some("stream"), "1");
    assert_refused(chat(&with(r#""stream_options":{"include_usage":true}"#)), Some("stream_options"), "no stream");
    assert_refused(chat(&with(r#""stream":true,"stream_options":7"#)), Some("stream_options"), "7");
    let bad = r#""stream":true,"stream_options":{"include_usage":"x"}"#;
    assert_refused(chat(&with(bad)), Some("stream_options.include_usage"), "x");
}

/// Fields with a value that asks for something that is not there.
const ASKS: &[(&str, &str)] = &[
    ("n", "2"),
    ("logprobs", "true"),
    ("top_logprobs", "5"),
    ("tools", r#"[{"type":"function"}]"#),
    ("tool_choice", r#""required""#),
    ("tool_choice", r#"{"type":"function","function":{"name":"f"}}"#),
    ("functions", "[{}]"),
    ("response_format", r#"{"type":"json_object"}"#),
    ("response_format", r#"{"type":"json_schema","json_schema":{}}"#),
    ("response_format", r#"{}"#),
    ("response_format", r#""text""#),
    ("logit_bias", r#"{"191222":-100}"#),
    ("guided_json", r#"{"type":"object"}"#),
    ("guided_regex", r#""(a+)+$""#),
    ("structured_outputs", r#"{"regex":"a"}"#),
    ("prompt_logprobs", "-1"),
    ("use_beam_search", "true"),
    ("modalities", r#"["text","audio"]"#),
    ("chat_template", r#""{{ x }}""#),
    ("chat_template_kwargs", r#"{"tokenize":true}"#),
    ("echo", "true"),
    ("skip_special_tokens", "false"),
    ("add_generation_prompt", "false"),
    ("continue_final_message", "true"),
    ("documents", "[{}]"),
    ("bad_words", r#"["a"]"#),
    ("allowed_token_ids", "[1]"),
    ("cache_salt", r#""s""#),
    ("suffix", r#""x""#),
    ("store", "true"),
    ("service_tier", r#""priority""#),
    ("reasoning_effort", r#""low""#),
    ("verbosity", r#""high""#),
    ("web_search_options", "{}"),
    ("prediction", r#"{"type":"content","content":"a"}"#),
    ("moderation", r#"{"model":"m"}"#),
    ("prompt_cache_options", r#"{"mode":"explicit"}"#),
    ("prompt_cache_retention", r#""24h""#),
    ("regex", r#""a+""#),
];

/// Fields with a value that asks for nothing.
const HARMLESS: &[&str] = &[
    r#""tool_choice":"none""#,
    r#""tool_choice":"auto""#,
    r#""tools":[]"#,
    r#""response_format":{"type":"text"}"#,
    r#""logit_bias":{}"#,
    r#""logprobs":false"#,
    r#""top_logprobs":0"#,
    r#""echo":false"#,
    r#""modalities":["text"]"#,
    r#""parallel_tool_calls":true"#,
    r#""parallel_tool_calls":false"#,
    r#""user":"u","safety_identifier":"s","metadata":{"a":"b"}"#,
    r#""store":false,"service_tier":"auto","reasoning_effort":"none","verbosity":"medium""#,
    r#""suffix":"","prompt_cache_options":{"mode":"implicit"},"prompt_cache_retention":"in_memory""#,
    r#""stream":true,"stream_options":{"include_obfuscation":false}"#,
    r#""cache_salt":"""#,
    r#""skip_special_tokens":true"#,
    r#""use_beam_search":false"#,
    r#""min_tokens":0"#,
    r#""best_of":1"#,
];

#[test]
fn what_is_not_there_yet_is_refused_by_name() {
    for &(field, value) in ASKS {
        // Each is refused by both endpoints.
        let template = matches!(field, "chat_template" | "chat_template_kwargs" | "documents") || field.contains("message");
        let prompt = (!template && field != "add_generation_prompt").then(|| format!("{{\"prompt\":\"a\",\"{field}\":{value}}}"));
        let completed = prompt.map(|body| completion(&body));
        for result in [Some(chat(&with(&format!("\"{field}\":{value}")))), completed].into_iter().flatten() {
            assert_eq!(result.as_ref().err().and_then(|e| e.code), Some("unsupported_parameter"), "{field}: {value}");
            assert_refused(result, Some(field), field);
        }
    }
    assert_refused(chat(&with(r#""prompt":"a""#)), Some("prompt"), "a chat with a prompt");
    assert_refused(completion(&format!(r#"{{"prompt":"a",{MESSAGES}}}"#)), Some("messages"), "a completion with messages");
    let obfuscated = r#""stream":true,"stream_options":{"include_obfuscation":true}"#;
    assert_refused(chat(&with(obfuscated)), Some("stream_options.include_obfuscation"), "obfuscation");
    for field in HARMLESS {
        assert!(chat(&with(field)).is_ok(), "{field}: {:?}", chat(&with(field)).err());
    }
    for (field, value) in
        [("echo", "1"), ("echo", "true"), ("suffix", r#""x""#), ("logprobs", "0"), ("logprobs", "1"), ("best_of", "3")]
    {
        assert_refused(completion(&format!(r#"{{"prompt":"a","{field}":{value}}}"#)), Some(field), field);
    }
    assert!(completion(r#"{"prompt":"a","suffix":"","echo":false,"logprobs":null,"best_of":1}"#).is_ok());
}

fn messages(body: &str) -> Result<Vec<(String, String)>, ApiError> {
    let Prompt::Chat(messages) = chat(body)?.request.prompt else { panic!("chat gives messages") };
    Ok(messages.into_iter().map(|ChatMessage { role, content, .. }| (role, content)).collect())
}

#[test]
fn content_comes_in_every_shape_that_clients_send() {
    let content = |content: &str| {
        let body = format!(r#"{{"messages":[{{"role":"assistant","content":{content}}}]}}"#);
        messages(&body).map(|m| m[0].1.clone())
    };
    assert_eq!(content(r#""a\n\u00e9\ud83d\ude00""#).unwrap(), "a\né😀");
    assert_eq!(content(r#""""#).unwrap(), "");
    assert_eq!(content("[]").unwrap(), "", "vLLM and SGLang take it, and clients send it");
    assert_eq!(content(r#"[{"type":"text","text":"a"},{"text":"b","type":"text"}]"#).unwrap(), "ab");
    for (value, param) in [
        ("1", "messages[0].content"),
        ("{}", "messages[0].content"),
        ("true", "messages[0].content"),
        (r#""\ud800""#, "messages[0].content"),
        (r#"["a"]"#, "messages[0].content[0]"),
        (r#"[{"text":"a"}]"#, "messages[0].content[0].type"),
        (r#"[{"type":"text"}]"#, "messages[0].content[0].text"),
        (r#"[{"type":"text","text":1}]"#, "messages[0].content[0].text"),
        (
            r#"[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}]"#,
            "messages[0].content[0].prompt_cache_breakpoint",
        ),
        (r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]"#, "messages[0].content[1].type"),
    ] {
        let body = format!(r#"{{"messages":[{{"role":"user","content":{value}}}]}}"#);
        assert_refused(chat(&body), Some(param), value);
    }
}

/// OpenAI's reference has it required for every role, but beside an assistant's `tool_calls`, which are not taken yet.
#[test]
fn a_message_without_content_is_refused() {
    for role in ["system", "developer", "user", "assistant"] {
        for rest in ["", r#","content":null"#, r#","tool_calls":[]"#, r#","content":null,"tool_calls":null"#] {
            let bare = format!(r#"{{"role":"{role}"{rest}}}"#);
            let body = format!(r#"{{"messages":[{{"role":"user","content":"a"}},{bare}]}}"#);
            assert_refused(chat(&body), Some("messages[1].content"), &bare);
        }
    }
    for name in ["tool_calls", "function_call"] {
        let body = format!(r#"{{"messages":[{{"role":"assistant","content":null,"{name}":[{{"id":"x"}}]}}]}}"#);
        assert_refused(chat(&body), Some(&format!("messages[0].{name}")), "what may stand in its place is named");
    }
}

#[test]
fn roles_are_known_ones() {
    let roles = messages(
        r#"{"messages":[{"role":"developer","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":""}]}"#,
    );
    let roles: Vec<String> = roles.unwrap().into_iter().map(|m| m.0).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    for (message, param) in [
        (r#"{"content":"a"}"#, "messages[0].role"),
        (r#"{"role":"tool_use","content":"a"}"#, "messages[0].role"),
        (r#"{"role":7,"content":"a"}"#, "messages[0].role"),
        (r#"{"role":"tool","content":"a"}"#, "messages[0].role"),
        (r#""hi""#, "messages[0]"),
        ("null", "messages[0]"),
        ("[]", "messages[0]"),
        (r#"{"role":"assistant","tool_calls":[{"id":"x"}]}"#, "messages[0].tool_calls"),
        (r#"{"role":"assistant","refusal":"no"}"#, "messages[0].refusal"),
        (r#"{"role":"user","content":"a","name":1}"#, "messages[0].name"),
    ] {
        assert_refused(chat(&format!(r#"{{"messages":[{message}]}}"#)), Some(param), message);
    }
    let named = chat(r#"{"messages":[{"role":"assistant","content":"a","tool_calls":[],"refusal":null,"name":"x"}]}"#).unwrap();
    let Prompt::Chat(named) = named.request.prompt else { panic!("chat gives messages") };
    assert_eq!(named[0].name.as_deref(), Some("x"));
    for messages in ["[]", "{}", "\"hi\"", "1"] {
        assert_refused(chat(&format!(r#"{{"messages":{messages}}}"#)), Some("messages"), messages);
    }
    let many = format!(r#"{{"messages":[{}]}}"#, vec!["0"; 20_000].join(","));
    assert_refused(chat(&many), Some("messages"), "20,000 messages");
}

#[test]
fn prompts_are_one_text_or_one_list_of_ids() {
    let prompt = |value: &str| completion(&format!(r#"{{"prompt":{value}}}"#)).map(|p| p.request.prompt);
    assert_eq!(prompt(r#""a""#).unwrap(), Prompt::Text("a".to_owned()));
    assert_eq!(prompt(r#" [ "a" ] "#).unwrap(), Prompt::Text("a".to_owned()));
    assert_eq!(prompt("[1,2]").unwrap(), Prompt::Tokens(vec![1, 2]));
    assert_eq!(prompt("[ [1, 2] ]").unwrap(), Prompt::Tokens(vec![1, 2]));
    let many = format!("[{}]", vec!["\"a\""; 100_000].join(","));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let bad = [
        "[]",
        "[[]]",
        "{}",
        "1",
        "true",
        r#"["a","b"]"#,
        "[[1],[2]]",
        "[1,\"a\"]",
        "[\"a\",1]",
        "[-1]",
        "[1.5]",
        "[4294967296]",
        "[null]",
        "[[[1]]]",
        r#""\udc00""#,
        &many,
        &deep,
    ];
    for value in bad {
        assert_refused(
            completion(&format!(r#"{{"prompt":{value}}}"#)),
            Some("prompt"),
            &value.chars().take(40).collect::<String>(),
        );
    }
    // Empty text is the tokenizer's to judge: a model that begins every text with a token can go on from it.
    assert_eq!(prompt(r#""""#).unwrap(), Prompt::Text(String::new()));
    assert_refused(completion(r#"{"prompt":"a","prompt_embeds":"x"}"#), Some("prompt_embeds"), "prompt_embeds");
}

#[test]
fn names_are_bounded() {
    let long = format!("\"model\":\"{}\"", "m".repeat(10_000));
    assert_refused(chat(&with(&long)), Some("model"), "a long name");
    assert_eq!(chat(&with(r#""model":"a/b","prompt_cache_key":"s""#)).unwrap().model.as_deref(), Some("a/b"));
}
