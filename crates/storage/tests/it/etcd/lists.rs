//! Tests lists of the store whose pages a fake etcd does not answer.

use std::sync::Arc;
use std::time::Duration;

use listwatch_storage::etcd3::{Etcd3, Etcd3Options};
use listwatch_storage::{ListQuery, ReadError, Storage, StoreFault};

use super::fake::{Answer, FakeEtcd};
use super::pods;
use super::raw::proto::{RangeRequest, path};

/// The keys of the first page, while the size of the objects is unknown.
const FIRST_PAGE: i64 = 128;

/// A store that waits a short time for each response.
async fn impatient(etcd: &FakeEtcd) -> Arc<Etcd3> {
    let mut options = Etcd3Options::new([&*etcd.url]);
    options.request_timeout = Duration::from_millis(200);
    Etcd3::connect(options).await.expect("an etcd that answers")
}

fn everything() -> ListQuery {
    ListQuery { range: pods(), at: None, limit: 0 }
}

/// The limits of the requests for pages.
fn pages(etcd: &FakeEtcd) -> Vec<i64> {
    let reads = etcd.requests::<RangeRequest>(path::RANGE).into_iter();
    reads.filter(|read| !read.range_end.is_empty()).map(|read| read.limit).collect()
}

#[tokio::test]
async fn list_from_a_silent_etcd_fails_after_one_page() {
    let etcd = FakeEtcd::start().await;
    let store = impatient(&etcd).await;
    etcd.answer(path::RANGE, vec![Answer::Silence; 50]);
    let read = store.list(everything()).await;
    assert!(matches!(read, Err(ReadError::Fault(StoreFault::Unavailable(_)))), "{read:?}");
    assert_eq!(pages(&etcd), [FIRST_PAGE; 2], "a single member receives each request twice");
}

#[tokio::test]
async fn page_that_is_late_is_read_in_smaller_pages_while_etcd_answers_small_reads() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/pods/ns/a", "{}");
    let store = impatient(&etcd).await;
    etcd.answer(path::RANGE, [Answer::Silence, Answer::Silence]);
    let page = store.list(everything()).await.expect("a smaller page arrives");
    assert_eq!(page.items.len(), 1);
    assert_eq!(pages(&etcd), [FIRST_PAGE, FIRST_PAGE, FIRST_PAGE / 2]);
}
