//! Lists that are slower than the store's compaction: they complete and show one revision.

use std::sync::Arc;

use crate::support::store::TestStore;
use crate::support::{config, key, options, quiet};
use listwatch_cacher::{Cacher, Limits, List, ReadError, Scope};
use listwatch_storage::Storage;

const OBJECTS: usize = 10;

async fn store() -> Arc<TestStore> {
    let store = TestStore::new();
    for n in 0..OBJECTS {
        let value = format!(r#"{{"metadata":{{"name":"x{n}"}}}}"#).into();
        store.create(&key(&format!("a/x{n}")), value, None).await.unwrap();
    }
    store.hasty();
    store
}

fn small_pages() -> Limits {
    Limits { list_page_objects: 3, history_refill_revisions_max: 0, ..quiet() }
}

async fn list(cacher: &Cacher, words: &[&str]) -> Result<List, ReadError> {
    let request = options(words).list(cacher.shape()).expect("valid options");
    cacher.list(&Scope::All, &request).await
}

#[tokio::test(start_paused = true)]
async fn cache_is_filled_despite_compaction_after_every_page() {
    let store = store().await;
    let cacher = Cacher::start(store.clone(), config(small_pages()));
    cacher.wait_ready().await.unwrap();
    assert_eq!(list(&cacher, &["rv=0"]).await.unwrap().items.count(), OBJECTS, "complete");
    assert_eq!(store.lists(), 2, "one page that is overtaken is enough to know better");
}

#[tokio::test(start_paused = true)]
async fn uncached_list_completes_despite_compaction_after_every_page() {
    let store = store().await;
    let cacher = Cacher::direct(store.clone(), config(small_pages()));
    let whole = list(&cacher, &[]).await.unwrap();
    assert_eq!((whole.items.count(), whole.continue_token), (OBJECTS, None), "complete, in one answer");
    // The rest of a page that is larger than the store's pages is read in one piece, too.
    let page = list(&cacher, &["limit=5"]).await.unwrap();
    assert_eq!((page.items.count(), page.remaining), (5, Some(5)));
    // A client that pages itself gets the error of kube-apiserver, because it holds the first
    // page's revision.
    let first = list(&cacher, &["limit=2"]).await.unwrap();
    let token = format!("continue={}", first.continue_token.expect("there is more"));
    let second = list(&cacher, &["limit=2", &token]).await.map(|list| list.revision);
    assert!(matches!(second, Err(ReadError::ExpiredPage { token: Some(_) })), "{second:?}");
}
