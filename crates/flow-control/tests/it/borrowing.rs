//! Tests the movement of seats between levels.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use listwatch_flow_control::{FlowController, RejectReason, WorkEstimate};
use listwatch_json::json;
use proptest::prelude::*;

use crate::objects::{digest, level, schema, user};

type Controller = FlowController<()>;

fn seats(controller: &Controller) -> BTreeMap<String, (u64, u64, u64, u64)> {
    let seats = controller.levels().map(|level| {
        (level.name.to_owned(), (level.nominal_seats, level.lower_seats, level.upper_seats, level.current_seats))
    });
    seats.collect()
}

fn rules(user: &str) -> listwatch_json::Value {
    json!([{"subjects": [{"kind": "User", "user": {"name": user}}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}])
}

#[test]
fn server_seats_are_divided_by_the_shares_of_levels() {
    let (mut controller, _) = Controller::new(Instant::now(), 600, 7);
    // The levels of kube-apiserver's defaults.
    let levels = [
        ("system", 30, 33),
        ("node-high", 40, 25),
        ("leader-election", 10, 0),
        ("workload-high", 40, 50),
        ("workload-low", 100, 90),
        ("global-default", 20, 50),
    ];
    let levels = levels.map(|(name, shares, lendable)| level(name, shares, lendable, None)).to_vec();
    controller.configure(Instant::now(), levels, Vec::new());
    let found: Vec<(String, (u64, u64, u64))> = seats(&controller)
        .into_iter()
        .map(|(name, (nominal, lower, upper, _))| (name, (nominal, lower, upper)))
        .collect();
    let expected = [
        ("catch-all", (13, 13, 613)),
        ("exempt", (0, 0, 600)),
        ("global-default", (49, 24, 649)),
        ("leader-election", (25, 25, 625)),
        ("node-high", (98, 73, 698)),
        ("system", (74, 50, 674)),
        ("workload-high", (98, 49, 698)),
        ("workload-low", (245, 24, 845)),
    ];
    assert_eq!(found, expected.map(|(name, seats)| (name.to_owned(), seats)));
}

#[test]
fn busy_level_borrows_seats_from_idle_levels_and_returns_them() {
    let start = Instant::now();
    let (mut controller, _) = Controller::new(start, 100, 7);
    let levels = vec![level("busy", 50, 0, None), level("idle", 45, 80, None)];
    let schemas = vec![schema("s", "busy", 5, rules("bob")), schema("t", "idle", 6, rules("eve"))];
    let classifier = controller.configure(start, levels, schemas).classifier;
    let (bob, eve) = (user("bob", &[]), user("eve", &[]));
    let (bobs, eves) = (digest(&bob, "get /x"), digest(&eve, "get /x"));
    let mut ids = Vec::new();
    for (request, number) in [(&bobs, 150), (&eves, 3)] {
        let schema = classifier.classify(request);
        for _ in 0..number {
            let hash = schema.flow_hash(request);
            ids.push(controller.start(start, schema, hash, WorkEstimate::ONE_SEAT, || ()).unwrap().id());
        }
    }
    let mut at = start;
    for _ in 0..3 {
        at = controller.next_timeout();
        controller.handle_timeout(at);
    }
    assert_eq!(at, start + Duration::from_secs(30), "seats move every ten seconds");
    let found = seats(&controller);
    assert_eq!(found["idle"].3, 9, "the idle level keeps what it does not lend");
    assert_eq!(found["busy"].3, 86, "the busy level borrows the rest");
    let executing = controller.levels().find(|level| level.name == "busy").unwrap().occupancy.executing;
    assert_eq!(executing, 86, "waiting requests use the borrowed seats at once");
    for id in ids {
        controller.end(at, id, RejectReason::Cancelled);
    }
    let schema = classifier.classify(&eves);
    for _ in 0..60 {
        let _ = controller.start(at, schema, schema.flow_hash(&eves), WorkEstimate::ONE_SEAT, || ());
    }
    for _ in 0..40 {
        at = controller.next_timeout();
        controller.handle_timeout(at);
    }
    assert!(seats(&controller)["idle"].3 >= 45, "a level gets its nominal seats back: {:?}", seats(&controller));
}

proptest! {
    #[test]
    fn adjusted_seats_stay_within_the_bounds_of_each_level(
        shapes in prop::collection::vec((1u64..100, 0u64..=100, prop::option::of(0u64..200), 0u64..80), 1..6),
        periods in 1usize..4,
    ) {
        let start = Instant::now();
        let (mut controller, _) = Controller::new(start, 60, 7);
        let name = |at: usize| format!("level-{at}");
        let levels = shapes.iter().enumerate();
        let levels = levels.map(|(at, (shares, lendable, borrowing, _))| level(&name(at), *shares, *lendable, *borrowing));
        let schemas = (0..shapes.len()).map(|at| schema(&name(at), &name(at), 5, rules(&name(at)))).collect();
        let classifier = controller.configure(start, levels.collect(), schemas).classifier;
        for (at, (.., requests)) in shapes.iter().enumerate() {
            let user = user(&name(at), &[]);
            let request = digest(&user, "get /x");
            let schema = classifier.classify(&request);
            for _ in 0..*requests {
                let _ = controller.start(start, schema, schema.flow_hash(&request), WorkEstimate::ONE_SEAT, || ());
            }
        }
        for _ in 0..periods {
            controller.handle_timeout(controller.next_timeout());
            let (mut nominal, mut current) = (0, 0);
            for level in controller.levels() {
                prop_assert!(level.lower_seats <= level.current_seats, "{} lent too much", level.name);
                prop_assert!(level.current_seats <= level.upper_seats, "{} borrowed too much", level.name);
                // A level that needs its nominal seats has them.
                let needed = level.demand.high_watermark.min(level.nominal_seats);
                prop_assert!(level.current_seats >= needed, "{} lacks seats", level.name);
                nominal += level.nominal_seats;
                current += level.current_seats;
            }
            let rounding = shapes.len() as u64 + 2;
            prop_assert!(current <= nominal + rounding, "seats are made: {current} of {nominal}");
        }
    }
}
