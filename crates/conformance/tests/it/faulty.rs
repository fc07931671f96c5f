//! Tests that the cases detect wrong servers. The server is listwatch behind a proxy that falsifies requests and
//! responses. Each fault fails the cases of the violated rule, and a case of another rule still passes.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use listwatch_apiserver::{ApiServer, ApiService};
use listwatch_client::Config;
use listwatch_conformance::{ActionFuture, Environment, HttpVersion, Outcome, RunOptions, Suite, Target, judge};
use listwatch_wire::JsonFrames;
use serde_json::{Value, json};

/// The fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The second event of each watch is lost.
    EventLost,
    /// The second event of each watch is sent twice.
    EventRepeated,
    /// The second and the third event of each watch are swapped.
    EventsExchanged,
    /// DELETED events carry the version of the last update instead of that of the deletion.
    DeletionWithOldVersion,
    /// Watches ignore their label selector.
    SelectorOfWatchIgnored,
    /// The bookmark after the initial events has no annotation `k8s.io/initial-events-end`.
    MarkMissing,
    /// The bookmark with the annotation `k8s.io/initial-events-end` comes before the initial events.
    MarkTooEarly,
    /// A watch from a compacted version does not fail, and sends only new changes.
    ExpiredWatchStaysSilent,
    /// Watches receive bookmarks that they did not request.
    UnwantedBookmarks,
    /// A watch that times out ends with an error event.
    TimeoutIsAnError,
    /// Lists have a resource version that is too old.
    ListVersionTooOld,
    /// Empty lists have `null` instead of an empty array.
    NullItems,
    /// Lists are in the reverse order.
    ItemsReversed,
    /// The continue token is ignored, so that every page begins with the first item.
    TokenIgnored,
    /// Lists at an exact version return the newest state.
    ExactIgnored,
    /// Conflicts are answered with 200 instead of 409.
    ConflictIsSuccess,
    /// Dry runs are stored.
    DryRunStored,
    /// Preconditions of deletions are ignored.
    PreconditionsIgnored,
    /// Errors have no reason.
    ReasonMissing,
    /// Finalizers are removed from created objects.
    FinalizersForgotten,
}

/// The environment of a server that never compacts its history.
struct UnlimitedHistory;

impl Environment for UnlimitedHistory {
    fn compact<'a>(&'a self, _resource_version: &'a str) -> Option<ActionFuture<'a>> {
        Some(Box::pin(async { Ok(()) }))
    }

    fn restart(&self) -> Option<ActionFuture<'_>> {
        None
    }
}

/// Runs the cases that `only` selects against a server with one fault. Returns the ids of the failed cases.
async fn failed_cases(fault: Fault, only: &[&str]) -> HashSet<String> {
    let server = ApiServer::builder().build().await.expect("a server");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let service = server.service();
    let accepting = tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let wrong = service_fn(move |request| {
                    let service = service.clone();
                    async move { Ok::<_, Infallible>(answer(fault, &service, request).await) }
                });
                let _ =
                    auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(connection), wrong).await;
            });
        }
    });
    let suite = Suite::bundled().expect("valid cases");
    let target = Target::new(Config::new(&url).expect("a URL"), HttpVersion::Any).await.expect("a target");
    let options = RunOptions { only: only.iter().map(|&text| text.to_owned()).collect(), ..RunOptions::default() };
    let report = judge(&suite, target, Arc::new(UnlimitedHistory), &options, |_| {}).await.expect("a report");
    accepting.abort();
    let failures = report.results.into_iter().filter(|result| matches!(result.outcome, Outcome::Failed { .. }));
    failures.map(|result| result.id).collect()
}

/// Asserts that the cases in `failing` fail and that the cases in `passing` pass.
#[track_caller]
fn check(fault: Fault, failing: &[&str], passing: &[&str]) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let only: Vec<&str> = failing.iter().chain(passing).copied().collect();
    let failed = runtime.block_on(failed_cases(fault, &only));
    for case in failing {
        assert!(failed.contains(*case), "{fault:?} is not noticed by {case}; failed: {failed:?}");
    }
    for case in passing {
        assert!(!failed.contains(*case), "{fault:?} fails {case}, which is about another rule");
    }
}

type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

async fn answer(fault: Fault, service: &ApiService, request: Request<Incoming>) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let mut pairs: Vec<String> = query.split('&').filter(|pair| !pair.is_empty()).map(str::to_owned).collect();
    let is_watch = pairs.iter().any(|pair| pair.starts_with("watch=") && pair != "watch=false" && pair != "watch=0");
    let mut body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let without = |pairs: &mut Vec<String>, names: &[&str]| {
        pairs.retain(|pair| !names.contains(&pair.split('=').next().unwrap_or_default()));
    };
    match fault {
        Fault::SelectorOfWatchIgnored if is_watch => without(&mut pairs, &["labelSelector"]),
        Fault::ExpiredWatchStaysSilent if pairs.contains(&"resourceVersion=1".to_owned()) => {
            without(&mut pairs, &["resourceVersion"]);
            pairs.extend(["sendInitialEvents=false".to_owned(), "resourceVersionMatch=NotOlderThan".to_owned()]);
        }
        Fault::UnwantedBookmarks if is_watch => {
            without(&mut pairs, &["allowWatchBookmarks"]);
            pairs.push("allowWatchBookmarks=true".to_owned());
        }
        Fault::TokenIgnored => without(&mut pairs, &["continue"]),
        Fault::ExactIgnored if !is_watch => without(&mut pairs, &["resourceVersion", "resourceVersionMatch"]),
        Fault::DryRunStored => without(&mut pairs, &["dryRun"]),
        Fault::PreconditionsIgnored if parts.method == http::Method::DELETE => body = Bytes::new(),
        Fault::FinalizersForgotten if parts.method == http::Method::POST => {
            if let Ok(mut object) = serde_json::from_slice::<Value>(&body) {
                object["metadata"]["finalizers"] = json!([]);
                body = object.to_string().into();
            }
        }
        _ => {}
    }
    let path = parts.uri.path().to_owned();
    parts.uri = format!("{path}?{}", pairs.join("&")).parse().unwrap_or(Uri::from_static("/"));
    parts.headers.remove(CONTENT_LENGTH);
    let is_patch = parts.method == http::Method::PATCH;
    let response = service.handle(Request::from_parts(parts, Full::new(body))).await;
    let (mut head, body) = response.into_parts();
    head.headers.remove(CONTENT_LENGTH);
    let is_json = head.headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/json"));
    if is_watch && head.status == StatusCode::OK && is_json {
        return Response::from_parts(head, watch_body(fault, body));
    }
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let body = match serde_json::from_slice::<Value>(&body) {
        Ok(mut document) if is_json => {
            falsify(fault, &mut document, &mut head.status, is_patch);
            Bytes::from(document.to_string())
        }
        _ => body,
    };
    Response::from_parts(head, Full::new(body).map_err(|never| match never {}).boxed_unsync())
}

/// Falsifies a response that is not a watch.
fn falsify(fault: Fault, document: &mut Value, code: &mut StatusCode, is_patch: bool) {
    match fault {
        Fault::ListVersionTooOld if document["items"].is_array() => {
            document["metadata"]["resourceVersion"] = json!("1")
        }
        Fault::NullItems if document["items"].as_array().is_some_and(Vec::is_empty) => document["items"] = Value::Null,
        Fault::ItemsReversed => {
            if let Some(items) = document["items"].as_array_mut() {
                items.reverse();
            }
        }
        Fault::ConflictIsSuccess if *code == StatusCode::CONFLICT && !is_patch => *code = StatusCode::OK,
        Fault::ReasonMissing if document["kind"] == "Status" => {
            if let Some(status) = document.as_object_mut() {
                status.shift_remove("reason");
            }
        }
        _ => {}
    }
}

/// The state of one falsified watch.
struct WatchState {
    fault: Fault,
    frames: JsonFrames,
    /// The number of events before this one and including it, without bookmarks.
    count: usize,
    held: Option<Value>,
    /// The resource version of the last event.
    version: Value,
    early: Vec<Value>,
    synced: bool,
}

impl WatchState {
    /// Returns the events to send in place of this event.
    fn pass(&mut self, mut event: Value) -> Vec<Value> {
        let is_bookmark = event["type"] == "BOOKMARK";
        self.count += usize::from(!is_bookmark);
        let second = self.count == 2 && !is_bookmark;
        match self.fault {
            Fault::EventLost if second => Vec::new(),
            Fault::EventRepeated if second => vec![event.clone(), event],
            Fault::EventsExchanged if second => {
                self.held = Some(event);
                Vec::new()
            }
            Fault::EventsExchanged if self.held.is_some() && !is_bookmark => {
                vec![event, self.held.take().unwrap_or_default()]
            }
            Fault::DeletionWithOldVersion => {
                if event["type"] == "DELETED" {
                    let is_first = self.version.is_null();
                    event["object"]["metadata"]["resourceVersion"] =
                        if is_first { json!("1") } else { self.version.clone() };
                }
                self.version = event["object"]["metadata"]["resourceVersion"].clone();
                vec![event]
            }
            Fault::MarkMissing if is_bookmark => {
                if let Some(metadata) = event["object"]["metadata"].as_object_mut() {
                    metadata.shift_remove("annotations");
                }
                vec![event]
            }
            Fault::MarkTooEarly if !self.synced => {
                if event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true" {
                    self.synced = true;
                    return [event].into_iter().chain(std::mem::take(&mut self.early)).collect();
                }
                self.early.push(event);
                Vec::new()
            }
            _ => vec![event],
        }
    }
}

fn watch_body(fault: Fault, body: listwatch_apiserver::Body) -> Body {
    let state = WatchState {
        fault,
        frames: JsonFrames::new(),
        count: 0,
        held: None,
        version: Value::Null,
        early: Vec::new(),
        synced: false,
    };
    let frames = stream::unfold((body, state, false), |(mut body, mut state, ended)| async move {
        if ended {
            return None;
        }
        let mut out = Vec::new();
        let ended = match body.frame().await {
            Some(Ok(frame)) => {
                state.frames.feed(frame.into_data().unwrap_or_default());
                while let Ok(Some(frame)) = state.frames.next_frame() {
                    for event in state.pass(serde_json::from_slice(&frame).unwrap_or_default()) {
                        out.extend_from_slice(event.to_string().as_bytes());
                        out.push(b'\n');
                    }
                }
                false
            }
            _ => {
                if state.fault == Fault::TimeoutIsAnError {
                    let error =
                        json!({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "timeout"}});
                    out.extend_from_slice(error.to_string().as_bytes());
                }
                true
            }
        };
        Some((Ok(Frame::data(Bytes::from(out))), (body, state, ended)))
    });
    StreamBody::new(frames.boxed()).boxed_unsync()
}

const ORDER: &str = "watch/changes-arrive-in-order/configmaps";
const EMPTY_LIST: &str = "core/empty-list-has-an-empty-array/configmaps";
const MARK: &str = "watch-list/initial-events-end-with-a-bookmark/configmaps/unset";

#[test]
fn server_that_loses_an_event_fails_the_completeness_cases() {
    let failing = [
        ORDER,
        "watch/history-is-replayed/configmaps",
        "ordering/concurrent-creates-arrive-once-in-order/configmaps",
        "ordering/list-and-watch-have-no-gap/configmaps",
    ];
    check(Fault::EventLost, &failing, &[EMPTY_LIST, "paging/pages-have-every-object-once/configmaps"]);
}

#[test]
fn server_that_repeats_an_event_fails_the_event_order_cases() {
    let failing = [ORDER, "ordering/list-and-watch-have-no-gap/configmaps"];
    check(Fault::EventRepeated, &failing, &[EMPTY_LIST]);
}

#[test]
fn server_that_swaps_events_fails_the_event_order_cases() {
    let failing = [ORDER, "ordering/concurrent-creates-arrive-once-in-order/configmaps"];
    check(Fault::EventsExchanged, &failing, &[EMPTY_LIST]);
}

#[test]
fn server_that_sends_old_versions_in_deletions_fails_the_deletion_event_cases() {
    let failing = [ORDER, "watch/version-of-a-deletion-resumes-behind-it/configmaps"];
    check(Fault::DeletionWithOldVersion, &failing, &["watch/earlier-changes-are-not-sent/configmaps"]);
}

#[test]
fn server_that_ignores_selectors_of_watches_fails_the_watch_selector_cases() {
    let failing = [
        "selectors/watch-sees-objects-enter-and-leave-the-labels/configmaps",
        "selectors/deletion-outside-of-the-selector-is-silent/configmaps",
    ];
    check(Fault::SelectorOfWatchIgnored, &failing, &["selectors/label-selector-selects/in", ORDER]);
}

#[test]
fn missing_initial_events_end_annotation_fails_the_watch_list_cases_only() {
    check(Fault::MarkMissing, &[MARK, "bookmarks/bookmark-has-no-content/configmaps"], &[ORDER]);
}

#[test]
fn early_initial_events_end_bookmark_fails_the_watch_list_cases() {
    check(Fault::MarkTooEarly, &["watch-list/mark-is-a-version-to-resume-from/configmaps"], &[EMPTY_LIST]);
}

#[test]
fn watch_from_a_compacted_version_without_an_error_fails_the_expiry_cases() {
    let failing = ["expiry/watch-from-a-lost-version-expires/configmaps"];
    check(Fault::ExpiredWatchStaysSilent, &failing, &[ORDER]);
}

#[test]
fn bookmarks_that_were_not_requested_fail_the_bookmark_case() {
    check(Fault::UnwantedBookmarks, &["watch-list/without-bookmarks-there-is-no-mark"], &[EMPTY_LIST]);
}

#[test]
fn error_event_at_the_watch_timeout_fails_the_timeout_case() {
    check(Fault::TimeoutIsAnError, &["watch/timeout-ends-the-stream-cleanly/configmaps"], &[ORDER]);
}

#[test]
fn list_with_an_old_resource_version_fails_the_freshness_cases() {
    let failing =
        ["core/items-equal-what-get-returns/configmaps", "versions/list-not-older-than-has-the-write/configmaps"];
    check(Fault::ListVersionTooOld, &failing, &["core/get-of-a-missing-name-is-404/configmaps"]);
}

#[test]
fn null_items_fail_the_empty_list_case() {
    check(Fault::NullItems, &[EMPTY_LIST], &["core/list-returns-every-object-in-order/configmaps"]);
}

#[test]
fn reversed_list_fails_the_list_order_case() {
    check(Fault::ItemsReversed, &["core/list-returns-every-object-in-order/configmaps"], &[EMPTY_LIST]);
}

#[test]
fn ignored_continue_token_fails_the_paging_cases() {
    let failing = ["paging/pages-have-every-object-once/configmaps", "paging/pages-show-one-moment/configmaps"];
    check(Fault::TokenIgnored, &failing, &[ORDER]);
}

#[test]
fn page_instead_of_410_for_an_expired_token_fails_the_expiry_case() {
    check(Fault::TokenIgnored, &["expiry/expired-token-comes-with-a-new-one/configmaps"], &[ORDER]);
}

#[test]
fn newest_state_in_an_exact_list_fails_the_exact_list_case() {
    check(Fault::ExactIgnored, &["versions/exact-list-shows-the-past/configmaps"], &[EMPTY_LIST]);
}

#[test]
fn code_200_instead_of_409_fails_the_conflict_cases() {
    let failing = [
        "core/create-of-an-existing-name-conflicts/configmaps",
        "core/update-with-a-stale-version-conflicts/configmaps",
    ];
    check(Fault::ConflictIsSuccess, &failing, &[EMPTY_LIST]);
}

#[test]
fn stored_dry_run_fails_the_dry_run_cases() {
    let failing = ["core/dry-run-create-stores-nothing/configmaps", "watch/failed-writes-are-no-events/configmaps"];
    check(Fault::DryRunStored, &failing, &[ORDER]);
}

#[test]
fn ignored_precondition_of_a_deletion_fails_the_precondition_cases() {
    let failing = [
        "deletes/wrong-uid-precondition-conflicts/configmaps",
        "deletes/stale-version-precondition-conflicts/configmaps",
    ];
    check(Fault::PreconditionsIgnored, &failing, &["deletes/matching-preconditions-delete/configmaps"]);
}

#[test]
fn status_without_a_reason_fails_the_error_cases() {
    check(Fault::ReasonMissing, &["core/get-of-a-missing-name-is-404/configmaps"], &[EMPTY_LIST]);
}

#[test]
fn removed_finalizer_fails_the_finalizer_case() {
    check(Fault::FinalizersForgotten, &["deletes/finalizer-delays-the-deletion/configmaps"], &[ORDER]);
}
