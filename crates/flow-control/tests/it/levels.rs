//! Requests through the controller, and changes of its configuration.

use std::time::{Duration, Instant};

use listwatch_flow_control::{
    ActiveSchema, DanglingCondition, FlowController, FlowSchema, RejectReason, RequestId, StartError, Started,
    WorkEstimate,
};
use listwatch_json::json;

use crate::objects::{digest, everything, level, schema, user};

type Controller = FlowController<u32>;

fn begin(controller: &mut Controller, now: Instant, schema: &ActiveSchema, waiter: u32) -> Result<Started, StartError> {
    controller.start(now, schema, 5, WorkEstimate::ONE_SEAT, || waiter)
}

fn occupied(controller: &Controller, name: &str) -> (usize, usize) {
    let level = controller.levels().find(|level| level.name == name).unwrap();
    (level.occupancy.executing, level.occupancy.waiting)
}

/// Starts requests until all seats of the level are taken and two requests wait.
fn fill(controller: &mut Controller, now: Instant, schema: &ActiveSchema) -> Vec<RequestId> {
    let mut ids = Vec::new();
    let mut waiting = 0;
    while waiting < 2 {
        match begin(controller, now, schema, waiting).unwrap() {
            Started::Executing(id) => ids.push(id),
            Started::Waiting(id) => {
                ids.push(id);
                waiting += 1;
            }
        }
    }
    ids
}

#[test]
fn canceled_waiting_request_leaves_its_queue_and_is_counted() {
    let now = Instant::now();
    let (mut controller, _) = Controller::new(now, 10, 7);
    let classifier =
        controller.configure(now, vec![level("a", 100, 0, Some(0))], vec![schema("s", "a", 5, everything())]);
    let (bob, line) = (user("bob", &[]), "get /x");
    let schema = classifier.classifier.classify(&digest(&bob, line));
    let ids = fill(&mut controller, now, schema);
    let (executing, waiting) = occupied(&controller, "a");
    assert_eq!(waiting, 2);
    let later = now + Duration::from_millis(30);
    assert_eq!(controller.end(later, ids[executing], RejectReason::TimeOut), Some(1), "Retry-After");
    assert_eq!(occupied(&controller, "a"), (executing, 1));
    assert_eq!(controller.end(later, ids[0], RejectReason::Cancelled), None, "it executed");
    assert_eq!(controller.poll_dispatched(), Some((ids[executing + 1], 1)));
    assert_eq!(controller.poll_dispatched(), None);
    let (_, _, counts) = controller.schema_counts().find(|(_, name, _)| *name == "s").unwrap();
    assert_eq!(counts.rejected, [0, 0, 1, 0]);
    assert_eq!((counts.dispatched, counts.executing, counts.waiting), (executing as u64 + 1, executing as u64, 0));
    assert_eq!(counts.seats_executing, executing as u64);
    assert_eq!(counts.waits.intervals[3], 1, "one request waited for 30 ms");
    assert_eq!(counts.rejected_waits.intervals[3], 1);
    for id in ids {
        controller.end(later, id, RejectReason::Cancelled);
    }
    assert_eq!(occupied(&controller, "a"), (0, 0));
    assert!(controller.schema_counts().all(|(_, _, counts)| counts.executing == 0 && counts.seats_executing == 0));
}

#[test]
fn dispatch_of_a_request_that_ends_before_polling_is_not_reported() {
    let now = Instant::now();
    let (mut controller, _) = Controller::new(now, 10, 7);
    let configured =
        controller.configure(now, vec![level("a", 100, 0, Some(0))], vec![schema("s", "a", 5, everything())]);
    let bob = user("bob", &[]);
    let schema = configured.classifier.classify(&digest(&bob, "get /x"));
    let ids = fill(&mut controller, now, schema);
    let (executing, _) = occupied(&controller, "a");
    controller.end(now, ids[0], RejectReason::Cancelled);
    // The first waiting request has its seat now, and its client is gone.
    assert_eq!(controller.end(now, ids[executing], RejectReason::Cancelled), None);
    assert_eq!(controller.poll_dispatched(), Some((ids[executing + 1], 1)), "the next request gets the seat");
}

#[test]
fn removed_level_drains_before_it_is_dropped() {
    let now = Instant::now();
    let (mut controller, _) = Controller::new(now, 10, 7);
    let schemas = || vec![schema("s", "a", 5, everything())];
    let first = controller.configure(now, vec![level("a", 100, 0, None)], schemas()).classifier;
    let bob = user("bob", &["system:authenticated"]);
    let request = digest(&bob, "get /x");
    let ids = fill(&mut controller, now, first.classify(&request));
    let second = controller.configure(now, Vec::new(), schemas());
    assert_eq!(second.classifier.classify(&request).name(), "catch-all");
    let dangling = DanglingCondition {
        schema: "s".to_owned(),
        status: "True",
        reason: "NotFound",
        message:
            "This FlowSchema references the PriorityLevelConfiguration object named \"a\" but there is no such object"
                .to_owned(),
    };
    assert_eq!(second.conditions, [dangling]);
    assert_eq!(occupied(&controller, "a").1, 2, "the requests stay");
    assert!(!controller.has_removable_level());
    for id in ids {
        controller.end(now, id, RejectReason::Cancelled);
        while controller.poll_dispatched().is_some() {}
    }
    assert!(controller.has_removable_level());
    controller.configure(now, Vec::new(), Vec::new());
    assert!(controller.levels().all(|level| level.name != "a"));
    assert_eq!(begin(&mut controller, now, first.classify(&request), 0), Err(StartError::LevelRemoved));
}

#[test]
fn dangling_condition_is_written_only_when_it_changes() {
    let now = Instant::now();
    let (mut controller, _) = Controller::new(now, 10, 7);
    let message = "This FlowSchema references the PriorityLevelConfiguration object named \"a\" and it exists";
    let stored = |status: &str| {
        let object = json!({"metadata": {"name": "s"}, "spec": {"priorityLevelConfiguration": {"name": "a"}, "rules": null},
            "status": {"conditions": [{"type": "Dangling", "status": status, "reason": "Found", "message": message}]}});
        FlowSchema::parse(object.to_string().as_bytes()).unwrap()
    };
    let mut conditions = |schema| controller.configure(now, vec![level("a", 1, 0, None)], vec![schema]).conditions;
    assert_eq!(conditions(stored("False")), []);
    let [written] = &conditions(stored("True"))[..] else { panic!("the condition is wrong and stays") };
    assert_eq!((written.status, written.reason, &*written.message), ("False", "Found", message));
}

#[test]
fn waiting_requests_survive_a_smaller_number_of_queues() {
    let now = Instant::now();
    let (mut controller, _) = Controller::new(now, 10, 7);
    let schemas = || vec![schema("s", "a", 5, everything())];
    let classifier = controller.configure(now, vec![level("a", 100, 0, Some(0))], schemas()).classifier;
    let bob = user("bob", &[]);
    let mut ids = fill(&mut controller, now, classifier.classify(&digest(&bob, "get /x")));
    let mut object = crate::objects::level_json("a", 100, 0, Some(0));
    object["spec"]["limited"]["limitResponse"] = json!({"type": "Reject"});
    let reject = listwatch_flow_control::PriorityLevel::parse(object.to_string().as_bytes()).unwrap();
    controller.configure(now, vec![reject], schemas());
    assert_eq!(occupied(&controller, "a").1, 2);
    let mut dispatched = 0;
    while let Some(id) = (!ids.is_empty()).then(|| ids.remove(0)) {
        controller.end(now, id, RejectReason::Cancelled);
        while controller.poll_dispatched().is_some() {
            dispatched += 1;
        }
    }
    assert_eq!(dispatched, 2, "a waiting request is forgotten");
    assert_eq!(occupied(&controller, "a"), (0, 0));
}

#[test]
fn seats_of_a_finished_write_linger_for_50_ms() {
    let now = Instant::now();
    let (mut controller, classifier) = FlowController::<u32>::new(now, 100, 7);
    let bob = user("bob", &[]);
    let schema = classifier.classify(&digest(&bob, "get /x"));
    let estimate = listwatch_flow_control::write_estimate(1_000, schema.request_seats_max());
    let id = controller.start(now, schema, 0, estimate, || 0).unwrap().id();
    controller.end(now, id, RejectReason::Cancelled);
    let seats = |controller: &Controller| {
        controller.levels().find(|level| level.name == "catch-all").unwrap().occupancy.seats_in_use
    };
    assert_eq!(seats(&controller), 10);
    let until = controller.next_timeout();
    assert_eq!(until, now + Duration::from_millis(50));
    controller.handle_timeout(until);
    assert_eq!(seats(&controller), 0);
}
