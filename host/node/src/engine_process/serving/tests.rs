//! What an engine process answers where it cannot do what it is told.

use tokio::sync::watch;

use super::*;

#[test]
fn a_lane_that_is_not_here_is_named_with_those_that_are() {
    let ends = ["fast", "exact"].map(|name| LaneEnd { name: name.into(), peer: watch::channel(None).0 });
    assert!(known(&ends, "slow").is_none());
    assert_eq!(known(&ends, "exact").map(|(lane, _)| lane), Some(LaneId(1)));
    let why = not_here(&ends, "slow");
    assert!(why.contains("`slow`") && why.contains("fast, exact"), "{why}");
}
