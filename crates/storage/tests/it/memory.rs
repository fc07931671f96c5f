//! The memory store passes the suite and agrees with the model.

use listwatch_storage::MemoryStorage;
use listwatch_store_conformance::{check_model, conformance_tests, operations};
use proptest::prelude::*;

conformance_tests! { async { MemoryStorage::new() } }

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_operations_on_the_memory_store_agree_with_the_model(operations in operations(120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let verdict = runtime.block_on(check_model(MemoryStorage::new(), &operations, async || None));
        prop_assert!(verdict.is_ok(), "{}", verdict.unwrap_err());
    }
}
