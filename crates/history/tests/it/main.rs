//! Tests the checker: legal histories pass, and each kind of defect is reported under the guarantee that it breaks.

use std::collections::BTreeMap;

use listwatch_history::{
    Bookmark, Change, Compaction, End, EndReason, Event, EventType, Expiry, Freshness, Get, Guarantee, History, Limits,
    List, Outcome, Record, Selector, Start, State, Watch, Write,
};
use proptest::prelude::*;

/// A change: the number of the object, and the new tier or `None` for a deletion.
type Step = (u8, Option<u8>);

/// The revision before the first change of a history.
const FIRST: u64 = 10;

fn name(object: u8) -> String {
    format!("{}/{object}", if object.is_multiple_of(2) { "even" } else { "odd" })
}

/// A selector of one tier in one namespace.
fn selector() -> Selector {
    let labels = BTreeMap::from([("tier".to_owned(), "1".to_owned())]);
    Selector { namespace: Some("even".to_owned()), labels }
}

/// A legal recording: one writer, a list and a watch of each selector, and gets. The time is the revision.
fn recording(steps: &[Step], selector: &Selector) -> Vec<Record> {
    let mut records = Vec::new();
    let mut state: BTreeMap<String, (u64, State)> = BTreeMap::new();
    let mut events = Vec::new();
    let mut revision = FIRST;
    for (object, tier) in steps {
        let object = name(*object);
        if tier.is_none() && !state.contains_key(&object) {
            continue;
        }
        revision += 1;
        let after = tier.map(|tier| State {
            value: format!("v{revision}"),
            labels: BTreeMap::from([("tier".to_owned(), tier.to_string())]),
        });
        let before = match &after {
            Some(after) => state.insert(object.clone(), (revision, after.clone())),
            None => state.remove(&object),
        };
        let value = after.as_ref().map(|after| after.value.clone());
        records.push(Record::Write(Write {
            client: "writer".to_owned(),
            from: revision * 10,
            to: revision * 10 + 5,
            object: object.clone(),
            value,
            replaces: before.as_ref().map(|(revision, _)| *revision),
            outcome: Outcome::Applied { revision: Some(revision) },
        }));
        let was = before.map(|(_, before)| before).filter(|before| selector.matches(&object, before));
        let is = after.clone().filter(|after| selector.matches(&object, after));
        let event = match (was, is) {
            (None, None) => None,
            (None, Some(is)) => Some((EventType::Added, is)),
            (Some(_), Some(is)) => Some((EventType::Modified, is)),
            (Some(was), None) => Some((EventType::Deleted, was)),
        };
        if let Some((kind, state)) = event {
            let at = revision * 10 + 7;
            events.push(Record::Event(Event { watch: 1, at, kind, object: object.clone(), revision, state }));
        }
        records.push(Record::Get(Get {
            client: "reader".to_owned(),
            from: revision * 10 + 8,
            to: revision * 10 + 9,
            object: object.clone(),
            found: state.get(&object).cloned(),
        }));
        records.push(Record::Change(Change { revision, object, state: after }));
    }
    let items = state.into_iter().filter(|(object, (_, state))| selector.matches(object, state)).collect();
    let (from, to) = (revision * 10 + 20, revision * 10 + 21);
    let list = List {
        client: "reader".to_owned(),
        from,
        to,
        freshness: Freshness::MostRecent,
        selector: selector.clone(),
        revision,
        items,
    };
    records.push(Record::List(list));
    let start = Start::After(FIRST);
    records.push(Record::Watch(Watch {
        watch: 1,
        client: "watcher".to_owned(),
        at: 0,
        start,
        selector: selector.clone(),
    }));
    records.append(&mut events);
    records.push(Record::Bookmark(Bookmark { watch: 1, at: to, revision, ends_initial_events: false }));
    records.push(Record::End(End { watch: 1, at: to, reason: EndReason::Closed }));
    records
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..6_u8, prop::option::weighted(0.75, 0..3_u8)), 1..40)
}

/// Steps that cause several events under every selector of these tests.
fn eventful() -> Vec<Step> {
    vec![(0, Some(1)), (2, Some(1)), (0, Some(1)), (1, Some(1)), (2, Some(2)), (2, Some(1)), (0, None), (0, Some(1))]
}

fn found(records: Vec<Record>) -> Vec<Guarantee> {
    History::new(records).check(&Limits::default()).into_iter().map(|violation| violation.guarantee).collect()
}

proptest! {
    #[test]
    fn legal_history_has_no_violation(steps in steps(), selected in any::<bool>()) {
        let selector = if selected { selector() } else { Selector::default() };
        let violations = History::new(recording(&steps, &selector)).check(&Limits::default());
        prop_assert!(violations.is_empty(), "{violations:?}");
    }

    #[test]
    fn recording_parsed_from_its_json_lines_is_unchanged(steps in steps()) {
        let records = recording(&steps, &selector());
        let lines: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
        let parsed = History::parse(&lines.join("\n")).unwrap();
        prop_assert_eq!(parsed.records(), &records[..]);
    }

    /// The checker names the revision of the missing event, for any event of a watch.
    #[test]
    fn missing_event_violates_guarantee_complete(steps in steps(), which in any::<prop::sample::Index>()) {
        let mut records = recording(&steps, &Selector::default());
        let events: Vec<usize> = positions(&records, |record| matches!(record, Record::Event(_)));
        prop_assume!(!events.is_empty());
        let removed = records.remove(*which.get(&events));
        let Record::Event(Event { revision, .. }) = removed else { unreachable!() };
        let violations = History::new(records).check(&Limits::default());
        let expected = format!("received no event for revision {revision},");
        prop_assert!(violations.iter().any(|violation| violation.evidence.contains(&expected)), "{violations:?}");
    }
}

fn positions(records: &[Record], wanted: impl Fn(&Record) -> bool) -> Vec<usize> {
    (0..records.len()).filter(|&at| wanted(&records[at])).collect()
}

/// Changes a legal recording, and returns the guarantees that the changed recording breaks.
fn after(change: impl FnOnce(&mut Vec<Record>, &[usize])) -> Vec<Guarantee> {
    let mut records = recording(&eventful(), &selector());
    let events = positions(&records, |record| matches!(record, Record::Event(_)));
    change(&mut records, &events);
    found(records)
}

fn event(record: &mut Record) -> &mut Event {
    match record {
        Record::Event(event) => event,
        other => panic!("not an event: {other:?}"),
    }
}

#[test]
fn swapped_events_violate_guarantee_ordered_or_complete() {
    let broken = after(|records, events| records.swap(events[1], events[2]));
    assert!(broken.contains(&Guarantee::Ordered) || broken.contains(&Guarantee::Complete), "{broken:?}");
}

#[test]
fn repeated_event_violates_guarantee_unique() {
    let broken = after(|records, events| records.insert(events[1], records[events[1]].clone()));
    assert_eq!(broken, [Guarantee::Unique]);
}

#[test]
fn event_of_the_start_revision_violates_guarantee_unique() {
    let broken = after(|records, _| {
        for record in records.iter_mut() {
            if let Record::Watch(watch) = record {
                watch.start = Start::After(FIRST + 1);
            }
        }
    });
    assert_eq!(broken, [Guarantee::Unique]);
}

#[test]
fn wrong_event_type_violates_guarantee_filtered_truthfully() {
    let broken = after(|records, events| event(&mut records[events[0]]).kind = EventType::Modified);
    assert_eq!(broken, [Guarantee::FilteredTruthfully]);
}

#[test]
fn event_of_an_unselected_object_violates_guarantee_filtered_truthfully() {
    let broken = after(|records, events| {
        let mut other = event(&mut records[events[2]]).clone();
        (other.object, other.revision, other.at) = (name(1), FIRST + 4, (FIRST + 4) * 10 + 7);
        other.kind = EventType::Added;
        records.insert(events[2] + 1, Record::Event(other));
    });
    assert_eq!(broken, [Guarantee::FilteredTruthfully]);
}

#[test]
fn deletion_event_with_another_state_violates_guarantee_complete() {
    let broken = after(|records, events| {
        let deleted = events.iter().find(|&&at| event(&mut records[at]).kind == EventType::Deleted).unwrap();
        event(&mut records[*deleted]).state.value = "other".to_owned();
    });
    assert_eq!(broken, [Guarantee::Complete]);
}

#[test]
fn event_at_the_revision_of_an_earlier_bookmark_violates_guarantee_bookmarkable() {
    let broken = after(|records, events| {
        let Event { at, revision, .. } = *event(&mut records[events[2]]);
        let bookmark = Bookmark { watch: 1, at, revision, ends_initial_events: false };
        records.insert(events[2], Record::Bookmark(bookmark));
    });
    assert_eq!(broken, [Guarantee::Bookmarkable]);
}

#[test]
fn expired_response_violates_guarantee_resumable_unless_changes_are_gone() {
    let expired = |compacted: Option<u64>, limits: Limits| {
        let mut records = recording(&eventful(), &Selector::default());
        let first = positions(&records, |record| matches!(record, Record::Event(_)))[1];
        records.retain(|record| !matches!(record, Record::Bookmark(_) | Record::End(_)));
        records.truncate(first);
        records.push(Record::End(End { watch: 1, at: 5_000, reason: EndReason::Expired }));
        records.extend(compacted.map(|revision| Record::Compaction(Compaction { at: 4_000, revision })));
        let violations = History::new(records).check(&limits);
        violations.iter().any(|violation| violation.guarantee == Guarantee::Resumable)
    };
    let window = |changes| Limits { expiry: Expiry::Window(changes) };
    assert!(expired(None, Limits::default()));
    assert!(expired(Some(FIRST + 1), Limits::default()), "the watch has seen that revision");
    assert!(!expired(Some(FIRST + 2), Limits::default()));
    assert!(expired(None, window(7)) && !expired(None, window(6)), "7 changes follow");
}

#[test]
fn partly_delivered_revision_violates_guarantee_atomic() {
    let change = |object: &str| {
        let state = Some(State { value: object.to_owned(), labels: BTreeMap::new() });
        Record::Change(Change { revision: 5, object: object.to_owned(), state })
    };
    let start = Start::After(4);
    let watch = Watch { watch: 1, client: "w".to_owned(), at: 0, start, selector: Selector::default() };
    let shown = |object: &str| {
        let state = State { value: object.to_owned(), labels: BTreeMap::new() };
        Record::Event(Event { watch: 1, at: 1, kind: EventType::Added, object: object.to_owned(), revision: 5, state })
    };
    let end = |reason| Record::End(End { watch: 1, at: 2, reason });
    let records = |rest: Vec<Record>| [vec![change("a"), change("b"), Record::Watch(watch.clone())], rest].concat();
    assert_eq!(found(records(vec![shown("b"), shown("a"), end(EndReason::Closed)])), []);
    assert_eq!(found(records(vec![shown("a"), end(EndReason::Closed)])), [Guarantee::Atomic]);
    assert_eq!(found(records(vec![shown("a"), end(EndReason::Cut)])), []);
    let bookmark = Record::Bookmark(Bookmark { watch: 1, at: 2, revision: 5, ends_initial_events: false });
    assert_eq!(found(records(vec![shown("a"), bookmark])), [Guarantee::Atomic]);
    assert_eq!(found(records(vec![shown("a"), shown("a")])), [Guarantee::Unique]);
}

#[test]
fn initial_events_that_match_no_state_violate_guarantee_complete() {
    let initial = |drop: bool, revision: u64| {
        let mut records = recording(&eventful(), &selector());
        records.retain(|record| !matches!(record, Record::Event(_) | Record::Bookmark(_) | Record::End(_)));
        let mut events = Vec::new();
        for record in &mut records {
            match record {
                Record::Watch(watch) => watch.start = Start::InitialEvents(FIRST + 8),
                Record::List(list) => {
                    for (object, (revision, state)) in &list.items {
                        let (object, revision, state) = (object.clone(), *revision, state.clone());
                        events.push(Record::Event(Event {
                            watch: 1,
                            at: 5_000,
                            kind: EventType::Added,
                            object,
                            revision,
                            state,
                        }));
                    }
                }
                _ => {}
            }
        }
        if drop {
            events.pop();
        }
        records.extend(events);
        records.push(Record::Bookmark(Bookmark { watch: 1, at: 5_000, revision, ends_initial_events: true }));
        found(records)
    };
    assert_eq!(initial(false, FIRST + 8), []);
    assert_eq!(initial(true, FIRST + 8), [Guarantee::Complete]);
    assert_eq!(initial(false, FIRST + 7), [Guarantee::NoTimeTravel]);
}

fn write(records: &mut [Record], number: usize) -> &mut Write {
    let writes = records.iter_mut().filter_map(|record| match record {
        Record::Write(write) => Some(write),
        _ => None,
    });
    writes.into_iter().nth(number).unwrap()
}

#[test]
fn lost_rejected_or_repeated_write_violates_guarantee_durable() {
    let lost = after(|records, _| write(records, 2).value = Some("never stored".to_owned()));
    assert_eq!(lost, [Guarantee::Durable]);
    let rejected = after(|records, _| write(records, 2).outcome = Outcome::Rejected);
    assert_eq!(rejected, [Guarantee::Durable]);
    let other_revision = after(|records, _| write(records, 2).outcome = Outcome::Applied { revision: Some(FIRST + 2) });
    assert_eq!(other_revision, [Guarantee::Durable]);
    let unknown = after(|records, _| write(records, 2).outcome = Outcome::Unknown);
    assert_eq!(unknown, []);
    let twice = after(|records, _| {
        let value = write(records, 2).value.clone();
        write(records, 0).value = value;
    });
    assert!(twice.contains(&Guarantee::Durable), "{twice:?}");
    let lost_update = after(|records, _| write(records, 2).replaces = Some(FIRST));
    assert_eq!(lost_update, [Guarantee::Durable]);
    let lost_deletion = after(|records, _| {
        let deletion = write(records, 6).clone();
        assert_eq!(deletion.value, None);
        records.push(Record::Write(deletion));
    });
    assert_eq!(lost_deletion, [Guarantee::Durable]);
}

#[test]
fn stale_read_violates_guarantee_read_your_writes() {
    let stale_list = after(|records, _| {
        for record in records.iter_mut() {
            if let Record::List(list) = record {
                list.revision -= 1;
            }
        }
    });
    assert_eq!(stale_list, [Guarantee::ReadYourWrites]);
    let stale_get = after(|records, _| {
        let mut old = None;
        for record in records.iter_mut() {
            if let Record::Get(get) = record
                && get.object == name(0)
            {
                match &old {
                    None => old = get.found.clone(),
                    Some(old) => get.found = Some(old.clone()),
                }
            }
        }
    });
    assert!(stale_get.contains(&Guarantee::ReadYourWrites), "{stale_get:?}");
    let unseen = after(|records, _| {
        for record in records.iter_mut() {
            if let Record::Get(get) = record {
                get.found = None;
            }
        }
    });
    assert!(unseen.contains(&Guarantee::ReadYourWrites), "{unseen:?}");
}

#[test]
fn list_that_matches_no_state_violates_guarantee_complete() {
    let broken = after(|records, _| {
        for record in records.iter_mut() {
            if let Record::List(list) = record {
                list.items.pop_first();
            }
        }
    });
    assert_eq!(broken, [Guarantee::Complete]);
}

#[test]
fn watch_without_a_recorded_start_is_reported() {
    let broken = after(|records, _| records.retain(|record| !matches!(record, Record::Watch(_))));
    assert_eq!(broken, [Guarantee::Complete]);
}

#[test]
fn check_of_a_record_at_revision_zero_does_not_panic() {
    let zero = after(|records, events| event(&mut records[events[0]]).revision = 0);
    assert!(zero.contains(&Guarantee::Unique), "{zero:?}");
    let state = State { value: "v".to_owned(), labels: BTreeMap::new() };
    let change = Change { revision: 0, object: "a".to_owned(), state: Some(state) };
    let write = Write {
        client: "w".to_owned(),
        from: 0,
        to: 1,
        object: "a".to_owned(),
        value: Some("v".to_owned()),
        replaces: Some(7),
        outcome: Outcome::Unknown,
    };
    assert_eq!(found(vec![Record::Change(change), Record::Write(write)]), [Guarantee::Durable]);
}

#[test]
fn parse_error_names_the_line_that_is_not_a_record() {
    let error = History::parse("\n{\"record\":\"change\"}").unwrap_err();
    assert!(error.to_string().starts_with("line 2 is not a record: missing field"), "{error}");
}
