//! Tests lists of the store whose pages a fake etcd does not answer.

use std::time::Duration;

use listwatch_storage::{ListPage, ListQuery, ReadError, Storage, StoreFault};
use tokio::time::timeout;

use super::answers::{pass, store_of};
use super::fake::{Answer, FakeEtcd};
use super::raw::proto::{RangeRequest, path};
use super::{PATIENCE, pods};

/// The keys of the first page, while the size of the objects is unknown.
const FIRST_PAGE: i64 = 128;

/// The time limit of the store for the response to a read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Lists everything from an etcd that does not answer the next `silences` reads. The first two of them are the attempts
/// for the first page, and their time limits pass at once.
async fn list_from(etcd: &FakeEtcd, silences: usize) -> Result<ListPage, ReadError> {
    let store = store_of(etcd).await;
    let before = etcd.requests::<RangeRequest>(path::RANGE).len();
    etcd.answer(path::RANGE, vec![Answer::Silence; silences]);
    let list = tokio::spawn(async move { store.list(ListQuery { range: pods(), at: None, limit: 0 }).await });
    for attempt in 1..=2 {
        etcd.wait_for::<RangeRequest>(path::RANGE, before + attempt).await;
        pass(REQUEST_TIMEOUT).await;
    }
    timeout(PATIENCE, list).await.expect("a list ends").unwrap()
}

/// The limits of the requests for pages.
fn pages(etcd: &FakeEtcd) -> Vec<i64> {
    let reads = etcd.requests::<RangeRequest>(path::RANGE).into_iter();
    reads.filter(|read| !read.range_end.is_empty()).map(|read| read.limit).collect()
}

#[tokio::test]
async fn list_from_a_silent_etcd_fails_after_one_page() {
    let etcd = FakeEtcd::start().await;
    let read = list_from(&etcd, 50).await;
    assert!(matches!(read, Err(ReadError::Fault(StoreFault::Unavailable(_)))), "{read:?}");
    assert_eq!(pages(&etcd), [FIRST_PAGE; 2], "a single member receives each request twice");
}

#[tokio::test]
async fn page_that_is_late_is_read_in_smaller_pages_while_etcd_answers_small_reads() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/pods/ns/a", "{}");
    let page = list_from(&etcd, 2).await.expect("a smaller page arrives");
    assert_eq!(page.items.len(), 1);
    assert_eq!(pages(&etcd), [FIRST_PAGE, FIRST_PAGE, FIRST_PAGE / 2]);
}
