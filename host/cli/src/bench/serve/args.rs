//! The command line of `millrace bench serve`: what is asked for, checked and completed. Sends nothing.

use std::env::{VarError, var};
use std::time::Duration;

use clap::Args;

use super::endpoint::{Key, Url};
use super::figures::Goals;

/// Clients of a level: as many connections and sockets.
const MAX_CONCURRENCY: usize = 4_096;
const MAX_LEVELS: usize = 64;
const MAX_REPEATS: u32 = 1_000;
const MAX_TOKENS: u32 = 1 << 20;
/// Of one round, whose times are all kept until it is summed up.
const MAX_TOKENS_PER_ROUND: u64 = 1 << 26;
/// Of a whole run, each with a prompt of its own.
const MAX_REQUESTS: u64 = 10_000_000;
/// Times are kept in 32 bits of microseconds.
const MAX_TIMEOUT_S: u64 = 3_600;
const KEY_VARIABLE: &str = "MILLRACE_API_KEY";

#[derive(Args)]
pub(crate) struct LoadArgs {
    /// Server, as http://127.0.0.1:8000; requests go to its /v1/chat/completions.
    #[arg(long)]
    url: String,
    /// Model that requests name.
    #[arg(short, long)]
    model: String,
    /// Clients at a time, one level for each number.
    #[arg(short, long, value_delimiter = ',', default_value = "1,8,32")]
    concurrency: Vec<usize>,
    /// Requests of each repeat of a level [default: twice the clients, at least 8]
    #[arg(short = 'n', long)]
    requests: Option<u32>,
    /// Tokens of a prompt as the server counts them, its chat template included; met within a few.
    #[arg(short, long, default_value_t = 240)]
    prompt_tokens: u32,
    /// Tokens of an answer; servers that know `ignore_eos` give no fewer.
    #[arg(long, default_value_t = 64)]
    max_tokens: u32,
    /// API key; better given in the environment as MILLRACE_API_KEY, where other users do not see it.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Measured repeats of each level.
    #[arg(short, long, default_value_t = 3)]
    repeats: u32,
    /// Requests before a level's first repeat, which are not measured [default: as many as clients]
    #[arg(long, value_name = "N")]
    warm_up: Option<u32>,
    /// Of the prompts [default: another one each time, so that nothing is cached from the run before]
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds that a request may take.
    #[arg(long, default_value_t = 600)]
    timeout_s: u64,
    /// Each request over a connection of its own, for servers that close kept ones as the next request comes.
    #[arg(long)]
    fresh_connections: bool,
    /// Goodput: the most milliseconds to the first text.
    #[arg(long)]
    ttft_ms: Option<f64>,
    /// Goodput: the most milliseconds of the 95th percentile of an answer's gaps.
    #[arg(long)]
    itl_ms: Option<f64>,
    /// One JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
}

/// What will be done.
pub(super) struct Settings {
    pub(super) url: Url,
    pub(super) url_text: String,
    pub(super) model: String,
    /// Clients, and the requests of a repeat.
    pub(super) levels: Vec<(usize, u32)>,
    pub(super) prompt_tokens: usize,
    pub(super) max_tokens: u32,
    pub(super) key: Option<Key>,
    pub(super) repeats: u32,
    /// `None`: as many as clients.
    pub(super) warm_up: Option<u32>,
    pub(super) seed: u64,
    pub(super) timeout: Duration,
    pub(super) fresh_connections: bool,
    pub(super) goals: Goals,
    pub(super) json: bool,
}

impl LoadArgs {
    /// # Errors
    /// What cannot be sent or measured, by its option.
    pub(super) fn settings(&self) -> Result<Settings, String> {
        let url = Url::parse(&self.url)?;
        within("--repeats", self.repeats, MAX_REPEATS)?;
        within("--prompt-tokens", self.prompt_tokens, MAX_TOKENS)?;
        within("--max-tokens", self.max_tokens, MAX_TOKENS)?;
        within("--timeout-s", self.timeout_s, MAX_TIMEOUT_S)?;
        for (option, goal) in [("--ttft-ms", self.ttft_ms), ("--itl-ms", self.itl_ms)] {
            if goal.is_some_and(|ms| !(ms > 0.0 && ms.is_finite())) {
                return Err(format!("{option}: a number of milliseconds above 0 is needed"));
            }
        }
        Ok(Settings {
            url,
            url_text: self.url.clone(),
            model: self.model.clone(),
            levels: self.levels()?,
            prompt_tokens: self.prompt_tokens as usize,
            max_tokens: self.max_tokens,
            key: self.key()?,
            repeats: self.repeats,
            warm_up: self.warm_up,
            seed: self.seed()?,
            timeout: Duration::from_secs(self.timeout_s),
            fresh_connections: self.fresh_connections,
            goals: Goals { ttft_ms: self.ttft_ms, itl_ms: self.itl_ms },
            json: self.json,
        })
    }

    fn levels(&self) -> Result<Vec<(usize, u32)>, String> {
        if self.concurrency.len() > MAX_LEVELS {
            return Err(format!(
                "--concurrency: {} levels; at most {MAX_LEVELS} are measured in one run",
                self.concurrency.len()
            ));
        }
        let mut levels = Vec::new();
        let mut total = 0;
        for &clients in &self.concurrency {
            within("--concurrency", clients, MAX_CONCURRENCY)?;
            let clients_u32 = clients as u32;
            let requests = self.requests.unwrap_or((2 * clients_u32).max(8));
            if requests < clients_u32 {
                return Err(format!("--requests {requests}: with fewer requests than clients, {clients} never run together"));
            }
            let most = MAX_TOKENS_PER_ROUND / u64::from(self.max_tokens);
            let most_at_once = requests.max(self.warm_up.unwrap_or(clients_u32));
            if u64::from(most_at_once) > most {
                return Err(format!(
                    "{most_at_once} requests of {} tokens: at most {most} fit into one repeat; take more --repeats of fewer",
                    self.max_tokens
                ));
            }
            let repeated = u64::from(requests) * u64::from(self.repeats);
            total += repeated + u64::from(self.warm_up.unwrap_or(clients_u32));
            levels.push((clients, requests));
        }
        if total > MAX_REQUESTS {
            return Err(format!("{total} requests in all: at most {MAX_REQUESTS} have a prompt of their own; take fewer"));
        }
        Ok(levels)
    }

    fn key(&self) -> Result<Option<Key>, String> {
        let text = match (&self.api_key, var(KEY_VARIABLE)) {
            (Some(key), _) => key.clone(),
            (None, Ok(key)) => key,
            (None, Err(VarError::NotPresent)) => return Ok(None),
            (None, Err(VarError::NotUnicode(_))) => return Err(format!("{KEY_VARIABLE} is not UTF-8")),
        };
        Key::new(text).map(Some)
    }

    fn seed(&self) -> Result<u64, String> {
        let any =
            || getrandom::u64().map_err(|e| format!("--seed: the operating system gave no random bytes ({e}); choose a seed"));
        self.seed.map_or_else(any, Ok)
    }
}

fn within<T: PartialOrd + From<u8> + std::fmt::Display>(option: &str, value: T, most: T) -> Result<(), String> {
    if value < T::from(1) || value > most {
        return Err(format!("{option} {value}: 1 to {most} can be asked for"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: LoadArgs,
    }

    fn settings(more: &str) -> Result<Settings, String> {
        let line = format!("bench --url http://a --model m --api-key k {more}");
        Line::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?.args.settings()
    }

    #[test]
    fn what_is_left_out_is_completed() {
        let all = settings("").ok().unwrap();
        assert_eq!(all.levels, [(1, 8), (8, 16), (32, 64)]);
        assert_eq!((all.prompt_tokens, all.max_tokens, all.repeats, all.warm_up), (240, 64, 3, None));
        assert_ne!(all.seed, settings("").ok().unwrap().seed);
        let some = settings("--concurrency 2,4 --requests 4 --seed 5 --warm-up 0 --ttft-ms 200").ok().unwrap();
        assert_eq!((some.levels, some.seed, some.warm_up), (vec![(2, 4), (4, 4)], 5, Some(0)));
        assert_eq!(some.goals, Goals { ttft_ms: Some(200.0), itl_ms: None });
    }

    #[test]
    fn what_is_beyond_a_bound_is_refused_by_name() {
        let many = format!("--concurrency {}", vec!["1"; MAX_LEVELS + 1].join(","));
        for (more, named) in [
            ("--concurrency 0", "--concurrency 0"),
            ("--concurrency 4097", "1 to 4096"),
            (&*many, "at most 64"),
            ("--concurrency 8 --requests 7", "--requests 7"),
            ("--concurrency 1 --requests 0", "--requests 0"),
            ("--requests 2000000 --max-tokens 64", "at most 1048576"),
            ("--warm-up 2000000", "at most 1048576"),
            ("--requests 1000000 --repeats 11", "at most 10000000"),
            ("--repeats 0", "--repeats 0"),
            ("--repeats 1001", "1 to 1000"),
            ("--prompt-tokens 0", "--prompt-tokens 0"),
            ("--max-tokens 1048577", "1 to 1048576"),
            ("--timeout-s 3601", "1 to 3600"),
            ("--itl-ms 0", "--itl-ms"),
            ("--ttft-ms NaN", "--ttft-ms"),
        ] {
            let message = settings(more).err().unwrap();
            assert!(message.contains(named), "{more}: {message}");
        }
        assert!(settings("--concurrency 4096 --max-tokens 1024").is_ok());
    }
}
