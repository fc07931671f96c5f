//! Tests the second round of mutating webhooks.

use listwatch_json::{Map, json};
use listwatch_webhooks::Reinvocation;

/// Runs a first round of calls (id, IfNeeded, changed), then begins the second. Returns the ids that run again.
fn second_round(calls: &[(&str, bool, bool)], plugins_change: bool) -> Option<Vec<String>> {
    let mut state = Reinvocation::default();
    let object: Map = [("a".to_owned(), json!(1))].into_iter().collect();
    assert_eq!(state.round(), 0);
    for (id, if_needed, changed) in calls {
        assert!(state.allows(id), "the first round calls every webhook");
        state.record_call(id, *if_needed, *changed);
    }
    state.end_round(&object);
    if !state.is_requested() {
        return None;
    }
    let later = if plugins_change { Map::new() } else { object.clone() };
    state.begin_second_round(&later);
    assert_eq!(state.round(), 1);
    let again = calls.iter().filter(|(id, ..)| state.allows(id)).map(|(id, ..)| (*id).to_owned()).collect();
    assert!(!state.allows("skipped in the first round"));
    state.record_call("x", true, true);
    assert!(!state.is_requested(), "there is no third round");
    Some(again)
}

#[test]
fn webhooks_before_a_later_change_are_reinvoked_once() {
    let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let calls = [("a", true, false), ("b", false, false), ("c", true, true), ("d", true, false)];
    assert_eq!(second_round(&calls, false), names(&["a"]), "a webhook does not react to its own change");
    assert_eq!(second_round(&calls, true), names(&["a", "c", "d"]));
    assert_eq!(second_round(&[("a", true, true), ("b", true, true)], false), names(&["a"]));
    assert_eq!(second_round(&[("a", true, false), ("b", false, false)], false), None);
    assert_eq!(second_round(&[("a", false, true)], false), names(&[]));
}
