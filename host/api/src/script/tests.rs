//! The script of events that a double of the engine plays, judged by what the API makes of it. Knows no model.

use std::sync::Arc;

use millrace_core::FinishReason;
use millrace_node::GenerateError;

use super::*;
use crate::chunks::Endpoint;

fn script(endpoint: Endpoint, usage: Usage) -> Script {
    let fingerprint: Arc<str> = "mr-fast-x".into();
    let writer = Writer { endpoint, id: "id-1".to_owned(), created: 7, model: "m".to_owned(), fingerprint };
    Script::new(writer, usage, 11)
}

fn text(delta: &str, tokens: u32) -> GenerationEvent {
    GenerationEvent::Text { delta: delta.to_owned(), tokens }
}

fn finished(reason: FinishReason) -> GenerationEvent {
    let usage = TokenUsage { prompt_tokens: 11, completion_tokens: 3, cached_tokens: 4 };
    GenerationEvent::Finished(Finished { reason, usage, matched_stop: None })
}

/// The JSON of every event, and the text of the last one, which is no JSON.
fn play(mut script: Script, events: Vec<GenerationEvent>) -> (Vec<Value>, String) {
    let count = events.len();
    let mut all = String::new();
    for (i, event) in events.into_iter().enumerate() {
        let (frames, progress) = script.write(event);
        assert_eq!(progress == Progress::Over, i + 1 == count);
        all.push_str(&frames);
    }
    let mut frames: Vec<&str> = all.split_terminator("\n\n").collect();
    let last = frames.pop().unwrap().to_owned();
    let parse = |frame: &str| serde_json::from_str(frame.strip_prefix("data: ").unwrap()).unwrap();
    (frames.into_iter().map(parse).collect(), last)
}

#[test]
fn a_chat_names_its_role_with_the_first_token_and_its_reason_at_the_end() {
    let events = vec![text("He", 1), text("llo", 2), finished(FinishReason::Stop)];
    let (chunks, last) = play(script(Endpoint::Chat, Usage::Nowhere), events);
    assert_eq!(last, "data: [DONE]");
    assert_eq!(chunks.len(), 3);
    assert_eq!(chunks[0]["choices"][0]["delta"], serde_json::json!({"role": "assistant", "content": "He"}));
    assert_eq!(chunks[1]["choices"][0]["delta"], serde_json::json!({"content": "llo"}));
    assert_eq!(chunks[2]["choices"][0]["delta"], serde_json::json!({}));
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "stop");
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(
            (&chunk["id"], &chunk["created"], &chunk["model"]),
            (&chunks[0]["id"], &chunks[0]["created"], &chunks[0]["model"])
        );
        assert_eq!(chunk["system_fingerprint"], "mr-fast-x");
        assert!(chunk.get("usage").is_none());
        assert_eq!(chunk["choices"].as_array().map(Vec::len), Some(1), "no empty choices without include_usage");
    }
}

#[test]
fn usage_comes_in_a_chunk_without_choices() {
    let events = vec![text("a", 1), finished(FinishReason::Length)];
    let (chunks, _) = play(script(Endpoint::Completion, Usage::Last), events);
    assert_eq!(chunks.len(), 3);
    assert_eq!(chunks[0]["object"], "text_completion");
    assert_eq!(chunks[0]["choices"][0]["text"], "a");
    assert!(chunks[0].get("usage").is_none() && chunks[1].get("usage").is_none());
    assert_eq!(chunks[1]["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks[2]["choices"], serde_json::json!([]));
    let usage = serde_json::json!({
        "prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 4}
    });
    assert_eq!(chunks[2]["usage"], usage);
}

#[test]
fn running_counts_add_up() {
    let events = vec![text("a", 1), text("b", 2), finished(FinishReason::Length)];
    let (chunks, _) = play(script(Endpoint::Chat, Usage::Everywhere), events);
    let counts: Vec<u64> = chunks.iter().map(|c| c["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 3, 3, 3]);
    assert!(chunks.iter().all(|c| c["usage"]["prompt_tokens"] == 11));
}

#[test]
fn an_answer_without_text_still_names_its_role() {
    let (chunks, last) = play(script(Endpoint::Chat, Usage::Nowhere), vec![finished(FinishReason::Stop)]);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!((chunks.len(), last.as_str()), (1, "data: [DONE]"));
}

#[test]
fn a_failure_is_an_error_event_and_then_the_end() {
    let events = vec![text("a", 1), GenerationEvent::Failed(GenerateError::PageMismatch)];
    let (chunks, last) = play(script(Endpoint::Chat, Usage::Last), events);
    assert_eq!(chunks.len(), 2);
    assert_eq!(chunks[1]["error"]["code"], "kv_page_mismatch");
    assert_eq!(chunks[1]["error"]["type"], "server_error");
    assert!(chunks[1].get("choices").is_none());
    assert_eq!(last, "data: [DONE]");
}

#[test]
fn whole_answers_have_what_the_clients_types_ask_for() {
    let GenerationEvent::Finished(end) = finished(FinishReason::Stop) else { unreachable!("made above") };
    let chat = script(Endpoint::Chat, Usage::Nowhere).writer.whole("hi", &end);
    assert_eq!(chat["object"], "chat.completion");
    assert_eq!(chat["choices"][0]["message"], serde_json::json!({"role": "assistant", "content": "hi", "refusal": null}));
    assert_eq!(chat["choices"][0]["finish_reason"], "stop");
    assert_eq!(chat["usage"]["total_tokens"], 14);
    let completion = script(Endpoint::Completion, Usage::Nowhere).writer.whole("hi", &end);
    assert_eq!((&completion["object"], &completion["choices"][0]["text"]), (&"text_completion".into(), &"hi".into()));
}
