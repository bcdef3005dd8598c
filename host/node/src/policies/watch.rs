//! Component files that are watched: a file that changed and has come to rest is loaded and put in force, as if it had been uploaded.
//! Looks once a second, which works on every file system; a file that is refused is looked at again when it changes again.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::thread;
use std::time::{Duration, SystemTime};

use millrace_config::{Component, Config, PolicySource};
use millrace_policy_wasm::{PolicyKind, PolicyOptions};

use super::{Policies, option_of};
use crate::error::SwapError;
use crate::policy_slots::{read_component, spec_of};

const INTERVAL: Duration = Duration::from_secs(1);

/// What tells one state of a file from another. Tools that copy a file's time with it put a new file in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    bytes: u64,
    inode: u64,
}

#[derive(Debug)]
struct Watched {
    kind: PolicyKind,
    path: PathBuf,
    /// In force, or refused.
    done: Option<Stamp>,
    /// At the last look.
    last: Option<Stamp>,
}

impl Watched {
    fn new(kind: PolicyKind, path: &Path) -> Self {
        let stamp = stamp(path);
        Self { kind, path: path.to_owned(), done: stamp, last: stamp }
    }

    /// Whether the file has another state than the one in force, and has had it for a whole interval.
    fn is_due(&mut self, now: Option<Stamp>) -> bool {
        let rests = now == self.last;
        self.last = now;
        now.is_some() && rests && now != self.done
    }
}

/// What is to be watched, as it is now: taken before the policies are first read, so that what changes meanwhile is seen.
pub(crate) struct WatchList(Vec<Watched>);

impl WatchList {
    pub(crate) fn of(config: &Config) -> Self {
        let watched = |kind| match (&spec_of(config, kind).source, spec_of(config, kind).watch) {
            (PolicySource::Component(component), true) => Some(Watched::new(kind, &component.path)),
            _ => None,
        };
        Self(PolicyKind::ALL.into_iter().filter_map(watched).collect())
    }
}

/// Starts the thread, if there is anything to watch or anybody to tell; it ends with `owner`.
pub(crate) fn start<T: Send + Sync + 'static>(WatchList(mut files): WatchList, owner: Weak<T>, policies: fn(&T) -> &Policies) {
    if files.is_empty() && owner.upgrade().is_none_or(|owner| !policies(&owner).afar.reaches()) {
        return;
    }
    let run = move || {
        while let Some(owner) = owner.upgrade() {
            files.iter_mut().for_each(|file| look(file, policies(&owner)));
            policies(&owner).catch_up();
            drop(owner);
            thread::sleep(INTERVAL);
        }
    };
    if let Err(error) = thread::Builder::new().name("policy-watch".into()).spawn(run) {
        tracing::error!(%error, "component files are not watched: there is no thread; upload what changes");
    }
}

fn look(file: &mut Watched, policies: &Policies) {
    let now = stamp(&file.path);
    if !file.is_due(now) {
        return;
    }
    // While another policy is being loaded the file stays due.
    if !matches!(policies.reload(file.kind, &file.path), Err(SwapError::Busy)) {
        file.done = now;
    }
}

impl Policies {
    /// Puts the file in force as the configuration loads it.
    fn reload(&self, kind: PolicyKind, path: &Path) -> Result<(), SwapError> {
        let _one = self.alone()?;
        let (options, recalls): (&PolicyOptions, u64) = (option_of(&self.options, kind), self.recalls(kind));
        let component = Component { path: path.to_owned(), sha256: None };
        match read_component(kind, &component, options.limits.component_bytes) {
            Ok(source) => {
                let put = || self.put(&self.engine.load(&source, kind, options)?, self.afar.keep(&source), recalls);
                self.told(kind, "policy replaced by its file", put()).map(|_| ())
            }
            Err(error) => {
                tracing::warn!(target: "millrace::audit", %kind, %error, "a watched file cannot be read; the policy in force stays");
                Ok(())
            }
        }
    }
}

/// None: there is no file, or it is a directory or a pipe, which holds no component.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some(Stamp { modified: metadata.modified().ok()?, bytes: metadata.len(), inode: metadata.ino() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_due_once_it_changed_and_rests() {
        let at =
            |seconds, bytes| Some(Stamp { modified: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), bytes, inode: 7 });
        let mut file = Watched { kind: PolicyKind::Route, path: PathBuf::new(), done: at(1, 10), last: at(1, 10) };
        assert!(!file.is_due(at(1, 10)), "unchanged");
        assert!(!file.is_due(at(2, 5)), "being written");
        assert!(!file.is_due(at(3, 20)), "still");
        assert!(file.is_due(at(3, 20)));
        file.done = at(3, 20);
        assert!(!file.is_due(at(3, 20)), "done");
        assert!(!file.is_due(None) && !file.is_due(None), "gone is no policy");
        assert!(!file.is_due(at(1, 10)));
        assert!(file.is_due(at(1, 10)), "an older file is another one too");
    }

    fn watching(path: &Path) -> WatchList {
        let policies = format!("[policy.schedule]\ncomponent = \"{}\"\nwatch = true\n", path.display());
        WatchList::of(&super::super::tests::config("", &policies))
    }

    /// What is in force is what was read after the list was made.
    #[test]
    fn what_changes_while_policies_are_loaded_is_due() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.wasm");
        fs::write(&path, "one").expect("written");
        let WatchList(mut files) = watching(&path);
        fs::write(&path, "another").expect("written");
        let due = [files[0].is_due(stamp(&path)), files[0].is_due(stamp(&path))];
        assert_eq!(due, [false, true], "once it rests");
    }

    /// As `rsync -t`, `tar` and reproducible builds leave it: another file of the same size and time.
    #[test]
    fn another_file_of_the_same_size_and_time_is_due() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, next) = (directory.path().join("x.wasm"), directory.path().join("next.wasm"));
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        for (path, text) in [(&path, "one"), (&next, "two")] {
            fs::write(path, text).expect("written");
            fs::File::options().write(true).open(path).expect("a file").set_modified(at).expect("a time");
        }
        let WatchList(mut files) = watching(&path);
        assert!(!files[0].is_due(stamp(&path)), "unchanged");
        fs::rename(&next, &path).expect("renamed");
        let due = [files[0].is_due(stamp(&path)), files[0].is_due(stamp(&path))];
        assert_eq!(due, [false, true], "once it rests");
    }

    /// To open a pipe would hold the thread up for ever.
    #[test]
    fn pipes_and_directories_are_no_components() {
        let directory = tempfile::tempdir().expect("a directory");
        let pipe = directory.path().join("x.wasm");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        for path in [pipe.as_path(), directory.path()] {
            assert_eq!(stamp(path), None);
            let component = Component { path: path.to_owned(), sha256: None };
            let error = read_component(PolicyKind::Schedule, &component, 1_000).expect_err("refused");
            assert!(error.to_string().contains("no regular file"), "{error}");
        }
    }
}
