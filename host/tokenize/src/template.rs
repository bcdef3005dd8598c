//! Chat templates: messages to one prompt string, by the Jinja template that comes with the model.
//! Knows messages; does not know tokens.

use std::io;

use minijinja::{Environment, ErrorKind, Value, context};

use crate::TokenizeError;
use crate::dialect::{self, Refusal};
use crate::disguise::private_characters_in;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// system, user, assistant, ... : what the template knows.
    pub role: String,
    /// Who of several participants in a role; for templates that tell them apart.
    pub name: Option<String>,
    /// May be empty; it is never turned into "none".
    pub content: String,
}

/// Instructions a rendering may take: a chat of 10,000 messages needs under a million.
const FUEL: u64 = 5_000_000;
/// Bytes a rendering may give.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Longest template source; the longest in use has 20 kB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Calls of macros and loops inside each other.
const MAX_DEPTH: usize = 100;

const NAME: &str = "chat";

/// A compiled chat template, shared by all requests.
///
/// It runs in a sandbox without files, clock or network, with bounded instructions, depth and output. Like the weights it comes from
/// the model's author: memory inside of one expression (a string doubled again and again) is not bounded by the engine.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    fuel: u64,
    private_characters: Vec<char>,
}

impl ChatTemplate {
    /// Compiles a template in the hub's dialect. `bos` and `eos` are the texts for `bos_token` and `eos_token`, or empty.
    ///
    /// # Errors
    /// [`TokenizeError::TemplateSyntax`].
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TokenizeError> {
        if source.len() > MAX_SOURCE_BYTES {
            let why = format!("it has {} bytes, more than {MAX_SOURCE_BYTES}", source.len());
            return Err(TokenizeError::TemplateSyntax { why });
        }
        let mut environment = dialect::environment();
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        environment
            .add_template_owned(NAME, dialect::without_generation_tags(source))
            .map_err(|error| TokenizeError::TemplateSyntax { why: describe(&error) })?;
        let private_characters = [source, bos, eos].into_iter().flat_map(private_characters_in).collect();
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned(), fuel: FUEL, private_characters })
    }

    /// The prompt for an answer to these messages (`add_generation_prompt` is true).
    ///
    /// # Errors
    /// [`TokenizeError::TemplateRefused`] with the template's own words, [`TokenizeError::TemplateFailed`],
    /// [`TokenizeError::TemplateOutOfFuel`], [`TokenizeError::TemplateOutputTooLong`].
    pub fn render(&self, messages: &[ChatMessage]) -> Result<String, TokenizeError> {
        let messages: Vec<Value> = messages.iter().map(value).collect();
        let context = context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => self.bos,
            eos_token => self.eos,
            tools => Value::from(()),
            documents => Value::from(()),
        };
        let mut output = BoundedOutput { bytes: Vec::new(), overflowed: false };
        let template = self.environment.get_template(NAME).map_err(|error| self.failure(&error))?;
        let rendered = template.render_captured_to(context, &mut output).map(|_| ());
        if output.overflowed {
            return Err(TokenizeError::TemplateOutputTooLong { limit: MAX_OUTPUT_BYTES });
        }
        rendered.map_err(|error| self.failure(&error))?;
        String::from_utf8(output.bytes).map_err(|error| TokenizeError::TemplateFailed { why: error.to_string() })
    }

    /// Private-use characters that the template itself may write.
    pub(crate) fn private_characters(&self) -> &[char] {
        &self.private_characters
    }

    fn failure(&self, error: &minijinja::Error) -> TokenizeError {
        if let Some(refusal) = refusal(error) {
            return TokenizeError::TemplateRefused { message: refusal.0.clone() };
        }
        if error.kind() == ErrorKind::OutOfFuel {
            return TokenizeError::TemplateOutOfFuel { fuel: self.fuel };
        }
        TokenizeError::TemplateFailed { why: describe(error) }
    }
}

/// A message as templates know it. Without a name it has no such field, not an empty one.
fn value(message: &ChatMessage) -> Value {
    let ChatMessage { role, name, content } = message;
    match name {
        None => context! { role => role, content => content },
        Some(name) => context! { role => role, name => name, content => content },
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("bos", &self.bos).field("eos", &self.eos).finish_non_exhaustive()
    }
}

/// What `raise_exception` said, if it is what failed.
fn refusal(error: &minijinja::Error) -> Option<&Refusal> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(refusal) = current.downcast_ref::<Refusal>() {
            return Some(refusal);
        }
        cause = current.source();
    }
    None
}

/// Kind, detail and line; not the engine's long form, which quotes the template.
fn describe(error: &minijinja::Error) -> String {
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    match error.detail() {
        Some(detail) => format!("{}: {detail}{line}", error.kind()),
        None => format!("{}{line}", error.kind()),
    }
}

struct BoundedOutput {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if part.len() > MAX_OUTPUT_BYTES.saturating_sub(self.bytes.len()) {
            self.overflowed = true;
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
