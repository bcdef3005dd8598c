//! What an instance does, into the recording: how it began before its first event, and how many events of it found no room. It does not
//! know what events hold.

use crate::instance::Instance;
use crate::prepared::Prepared;
use crate::record::Recorder;
use crate::trace::{self, Event, Init};
use crate::wire::Info;
use crate::worlds::World;

/// An event, made of the instance's number and how many of it were missed, and before the first one of an instance how that began.
/// Where there was no room for that, the instance begins with the next event, as one that did more before.
pub(crate) fn record<W: World>(
    recorder: &Recorder,
    instance: &mut Instance<W>,
    event: impl FnOnce(u64, u64) -> Event<W::Arguments, W::Answer>,
) {
    if let Some(mut init) = instance.take_beginning() {
        instance.count_as(recorder.next_instance());
        init.instance = instance.number();
        if !recorder.record(Event::<(), ()>::Init((*init).clone())) {
            init.continued = true;
            instance.began_as(*init);
            recorder.miss();
            return;
        }
    }
    let missed = instance.take_missed();
    if !recorder.record(event(instance.number(), missed)) {
        instance.miss(missed.saturating_add(1));
    }
}

/// How an instance began, as soon as its `init` has answered.
pub(crate) fn beginning<W: World>(prepared: &Prepared, instance: &mut Instance<W>, info: Option<&Info>) -> Init {
    Init {
        version: trace::VERSION,
        instance: 0,
        kind: W::KIND.to_string(),
        sha256: prepared.sha256.clone(),
        seed: prepared.digest_seed,
        config: prepared.options.config_json.clone(),
        now_us: instance.now_us(),
        imports: instance.recorded_imports(),
        info: info.cloned(),
        continued: false,
    }
}
