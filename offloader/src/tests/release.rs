use bytes::Bytes;
use ledger::{BookieId, ColdId, EntryId, LedgerMetadata, Tier};
use metadata::{ColdNames, ColdShards, Expect, FaultKind, MetadataStore as _, layout};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::world::{GatewayAnswer, World, id, register};
use crate::OffloaderConfig;
use crate::error::ErrorKind;
use crate::observe::Step;

#[tokio::test(start_paused = true)]
async fn a_proved_ledger_gets_cold_ids_one_for_one() {
    let world = World::new().await;
    let ledger = world.ledger(5, 300).await;
    world.offloader.offload_now(ledger, false).await.unwrap();
    let before = world.record(ledger).await.metadata;
    let report = world.offloader.offload_now(ledger, true).await.unwrap();
    assert!(report.released && !report.uploaded);
    assert_eq!(report.tier, Tier::Released);
    let after = world.record(ledger).await.metadata;
    assert_eq!((after.state(), after.quorums()), (before.state(), before.quorums()));
    let ids = ColdId::for_ledger(ledger, 3, "cold.thermocline", 3181).unwrap();
    let names: Vec<BookieId> = ids.iter().map(ColdId::to_bookie_id).collect();
    assert_eq!(after.segments()[0].ensemble, names);
    let last = EntryId::new(299).unwrap();
    let every_id = [(0, EntryId::ZERO), (0, last), (1, EntryId::ZERO), (1, last), (2, EntryId::ZERO), (2, last)];
    assert_eq!(*world.gateway.asked.lock().unwrap(), every_id);
    world.assert_readable(ledger).await;
    world.assert_tidy().await;

    let again = world.offloader.offload_now(ledger, true).await.unwrap();
    assert!(!again.released && again.tier == Tier::Released);
}

#[tokio::test(start_paused = true)]
async fn a_ledger_of_one_entry_is_released() {
    let world = World::new().await;
    let ledger = world.ledger(5, 1).await;
    assert_eq!(world.offloader.offload_now(ledger, true).await.unwrap().tier, Tier::Released);
    assert_eq!(*world.gateway.asked.lock().unwrap(), [0, 1, 2].map(|member| (member, EntryId::ZERO)));
}

#[tokio::test(start_paused = true)]
async fn what_the_gateway_does_not_serve_is_not_released() {
    let world = World::new().await;
    let ledger = world.ledger(5, 300).await;
    for (answer, kind) in [
        (GatewayAnswer::OtherBytes, ErrorKind::Damaged),
        (GatewayAnswer::Nothing, ErrorKind::Damaged),
        (GatewayAnswer::Refuses, ErrorKind::Damaged),
        (GatewayAnswer::Waits, ErrorKind::Waiting),
        (GatewayAnswer::Hangs, ErrorKind::Waiting),
    ] {
        *world.gateway.answer.lock().unwrap() = answer;
        let error = world.offloader.offload_now(ledger, true).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{answer:?}: {error}");
        assert_eq!(world.record(ledger).await.metadata.tier(), Tier::Settled, "{answer:?}");
    }
    *world.gateway.answer.lock().unwrap() = GatewayAnswer::True;
    assert!(world.offloader.offload_now(ledger, true).await.unwrap().released);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_not_whole_is_not_released() {
    let world = World::new().await;
    let ledger = world.ledger(5, 300).await;
    world.offloader.offload_now(ledger, false).await.unwrap();
    let key = world.keys().await.remove(0);
    let path = Path::from(key.clone());
    let good = world.objects.get(&path).await.unwrap().bytes().await.unwrap();
    let mut flipped_head = good.to_vec();
    flipped_head[40] ^= 1;
    let mut flipped_tail = good.to_vec();
    let tail = flipped_tail.len() - 20;
    flipped_tail[tail] ^= 1;
    let put = async |bytes: Bytes| world.objects.put_opts(&path, bytes.into(), Default::default()).await.unwrap();
    for (name, bytes) in [
        ("cut", good.slice(..good.len() / 2)),
        ("longer", [&good[..], b"x"].concat().into()),
        ("first page", flipped_head.into()),
        ("tail", flipped_tail.into()),
    ] {
        put(bytes).await;
        let error = world.offloader.offload_now(ledger, true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{name}: {}", error.chain());
        assert!(error.chain().contains(&key), "{name} names the object: {}", error.chain());
        assert_eq!(world.record(ledger).await.metadata.tier(), Tier::Settled, "{name}");
    }
    put(good).await;
    assert!(world.offloader.offload_now(ledger, true).await.unwrap().released);
}

#[tokio::test(start_paused = true)]
async fn a_missing_object_or_catalog_entry_stops_the_release() {
    let world = World::new().await;
    let ledger = world.ledger(5, 30).await;
    world.offloader.offload_now(ledger, false).await.unwrap();
    let record = world.record(ledger).await;
    let cold = world.cold_record(ledger).await.unwrap();
    let mut other = cold.clone();
    other.object = world.instance.as_str().parse().unwrap();
    let changed = record.metadata.with_cold_record(&other).unwrap();
    let version = world.ledgers.update(ledger, &changed, record.version).await.unwrap();
    let error = world.offloader.offload_now(ledger, true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("catalog"), "{error}");

    world.ledgers.update(ledger, &record.metadata, version).await.unwrap();
    let path = Path::from(cold.object_key(world.instance.as_str(), ledger));
    world.objects.delete(&path).await.unwrap();
    let error = world.offloader.offload_now(ledger, true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.chain().contains(path.as_ref()), "{}", error.chain());
    assert_eq!(world.record(ledger).await.metadata.tier(), Tier::Settled);
}

#[tokio::test(start_paused = true)]
async fn a_record_changed_under_the_proof_is_proved_again() {
    let world = World::new().await;
    let ledger = world.ledger(5, 30).await;
    let ledgers = world.ledgers.clone();
    world.script.before(Step::Release, move || async move {
        let record = ledgers.get_quorum(ledger).await.unwrap().unwrap();
        let changed = record.metadata.with_custom("auditor", "was here").unwrap();
        ledgers.update(ledger, &changed, record.version).await.unwrap();
    });
    assert!(world.offloader.offload_now(ledger, true).await.unwrap().released);
    assert_eq!(world.script.count(Step::ProveRelease), 2);
    assert_eq!(world.record(ledger).await.metadata.custom("auditor"), Some(&b"was here"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_changed_hands_under_the_proof_is_proved_again() {
    let world = World::new().await;
    let ledger = world.ledger(5, 30).await;
    let (store, gateway) = (world.store.clone(), world.gateway.clone());
    world.script.before(Step::Release, move || async move { gateway.claim(&store).await });
    assert!(world.offloader.offload_now(ledger, true).await.unwrap().released);
    assert_eq!(world.script.count(Step::ProveRelease), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_the_release_is_recognised() {
    for fault in [FaultKind::AppliedUnknown, FaultKind::NotAppliedUnknown] {
        let world = World::new().await;
        let ledger = world.ledger(5, 30).await;
        world.offloader.offload_now(ledger, false).await.unwrap();
        world.store.fail_next_on(&layout::ledger_key(ledger), fault);
        assert!(world.offloader.offload_now(ledger, true).await.unwrap().released, "{fault:?}");
        assert_eq!(world.store.outstanding(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_mixed_ensemble_is_released_again() {
    let world = World::new().await;
    let ledger = world.ledger(5, 30).await;
    world.offloader.offload_now(ledger, true).await.unwrap();
    let record = world.record(ledger).await;
    // What a re-replicator elsewhere does: one member becomes a bookie again.
    let text = record.metadata.encode();
    let cold = record.metadata.segments()[0].ensemble[1].to_string();
    let real = format!("b{}", "k".repeat(cold.len() - 1));
    let place = text.windows(cold.len()).position(|window| window == cold.as_bytes()).unwrap();
    let mut mixed = text;
    mixed[place..place + cold.len()].copy_from_slice(real.as_bytes());
    let mixed = LedgerMetadata::decode(&mixed).unwrap();
    assert_eq!(mixed.tier(), Tier::Settled);
    register(&world.store, &real, true).await;
    // Who is registered is looked up again.
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    world.ledgers.update(ledger, &mixed, record.version).await.unwrap();
    assert!(world.offloader.offload_now(ledger, true).await.unwrap().released);
    assert_eq!(world.record(ledger).await.metadata, record.metadata);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_nobody_serves_waits_and_is_no_failure() {
    let world = World::new().await;
    let ledger = world.ledger(5, 30).await;
    *world.gateway.answer.lock().unwrap() = GatewayAnswer::Waits;
    world.offloader.offload_now(ledger, true).await.unwrap_err();
    assert_eq!(world.offloader.tallies().failed, 0);
    assert!(world.offloader.releases_wait_for().unwrap().contains("nobody owns the shard"));
    // Others are settled meanwhile, and the ids have their names.
    let other = world.ledger(6, 30).await;
    assert_eq!(world.offloader.offload_now(other, false).await.unwrap().tier, Tier::Settled);
    let names = ColdShards::new(world.store.clone()).names().await.unwrap().unwrap();
    assert_eq!((names.domain.as_str(), names.port, names.members), ("cold.thermocline", 3181, 3));
    *world.gateway.answer.lock().unwrap() = GatewayAnswer::True;
    assert!(world.offloader.offload_now(ledger, true).await.unwrap().released);
    assert_eq!(world.offloader.releases_wait_for(), None);
}

#[tokio::test(start_paused = true)]
async fn a_ledger_whose_cold_ids_clients_cannot_find_stays_with_its_bookies() {
    let world = World::new().await;
    world.store.set_clients_resolve_by_registration(false);
    let ledger = world.ledger(5, 30).await;
    let error = world.offloader.offload_now(ledger, true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Waiting);
    assert!(error.chain().contains("cold_ids_in_dns = true"), "{}", error.chain());
    assert!(world.offloader.releases_wait_for().unwrap().contains("cannot find cold ids"));
    assert_eq!((world.record(ledger).await.metadata.tier(), world.offloader.tallies().failed), (Tier::Settled, 0));

    let world = World::with(OffloaderConfig { cold_ids_in_dns: true, ..OffloaderConfig::default() }).await;
    world.store.set_clients_resolve_by_registration(false);
    let ledger = world.ledger(5, 30).await;
    assert!(world.offloader.offload_now(ledger, true).await.unwrap().released);
}

#[tokio::test(start_paused = true)]
async fn cold_ids_that_the_cluster_names_otherwise_are_not_written() {
    let world = World::new().await;
    let ledger = world.ledger(5, 30).await;
    let names = ColdNames { domain: "elsewhere".to_owned(), port: 3181, members: 3 };
    ColdShards::new(world.store.clone()).ensure_names(&names).await.unwrap();
    let error = world.offloader.offload_now(ledger, true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.chain().contains(".elsewhere:3181"), "{}", error.chain());
    assert_eq!(world.record(ledger).await.metadata.tier(), Tier::Settled);
}

#[tokio::test(start_paused = true)]
async fn names_of_cold_ids_that_released_ledgers_have_are_written_again() {
    let world = World::new().await;
    let ledger = world.ledger(5, 30).await;
    world.offloader.offload_now(ledger, true).await.unwrap();
    let shards = ColdShards::new(world.store.clone());
    let named = shards.names().await.unwrap().unwrap();
    // As where an older release did not write them, and while nobody releases anything.
    world.store.delete_if(&layout::cold_names_key(), Expect::Present).await.unwrap();
    world.offloader.inner.scan().await.unwrap();
    assert_eq!(shards.names().await.unwrap(), Some(named.clone()));
    // What was released under other names is told, and no more.
    let wide = world.ledger(6, 30).await;
    let record = world.record(wide).await;
    let ids = ColdId::for_ledger(wide, 3, "elsewhere", 3181).unwrap();
    world.ledgers.update(wide, &record.metadata.released_to(&ids).unwrap(), record.version).await.unwrap();
    world.offloader.inner.scan().await.unwrap();
    assert_eq!(shards.names().await.unwrap(), Some(named), "others than the cluster's change nothing");
}

/// Registers the ledger's bookies: `apache` of them as BookKeeper's own are.
async fn register_bookies(world: &World, apache: &[&str]) {
    for name in ["bk1:3181", "bk2:3181", "bk3:3181"] {
        register(&world.store, name, !apache.contains(&name)).await;
    }
}

/// The bookie's session has ended, as that of one that is down.
async fn end_registration(world: &World, name: &str) {
    let key = layout::available_key(&ledger::BookieId::new(name).unwrap());
    world.store.delete_if(&key, Expect::Present).await.unwrap();
}

fn hot_members(record: &metadata::LedgerRecord) -> usize {
    record.metadata.segments()[0].ensemble.iter().filter(|member| !ledger::is_cold(member)).count()
}

#[tokio::test(start_paused = true)]
async fn beside_bookies_that_cannot_relay_one_of_a_write_set_stays_for_the_grace() {
    let mut world = World::new().await;
    let ledger = world.ledger(5, 30).await;
    register_bookies(&world, &["bk2:3181"]).await;
    let report = world.offloader.offload_now(ledger, true).await.unwrap();
    assert_eq!((report.released, report.tier), (false, Tier::Settled));
    let partly = world.record(ledger).await;
    assert_eq!(hot_members(&partly), 1);
    assert!(partly.metadata.partly_released_until().is_some());
    assert_eq!(report.partly_released_until_ms, partly.metadata.partly_released_until());
    world.assert_readable(ledger).await;
    // Neither an order nor another process shortens it.
    world.new_process();
    assert!(!world.offloader.offload_now(ledger, true).await.unwrap().released);
    assert_eq!(world.record(ledger).await, partly);
    assert_eq!(world.script.count(Step::ProveRelease), 0, "nothing is asked of gateways meanwhile");

    tokio::time::advance(OffloaderConfig::default().handle_grace.duration()).await;
    world.new_process_at(OffloaderConfig::default().handle_grace.duration());
    let report = world.offloader.offload_now(ledger, true).await.unwrap();
    assert_eq!((report.released, report.tier), (true, Tier::Released));
    assert_eq!(world.script.count(Step::ProveRelease), 1, "the second step is proved as the first");
    assert_eq!(world.record(ledger).await.metadata.partly_released_until(), None);
    world.assert_readable(ledger).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_around_either_step_leaves_a_ledger_that_goes_on() {
    for after in [false, true] {
        let mut world = World::new().await;
        let ledger = world.ledger(5, 30).await;
        register_bookies(&world, &["bk1:3181", "bk2:3181", "bk3:3181"]).await;
        world.script.halt(Step::Release, after);
        world.offloader.offload_now(ledger, true).await.unwrap_err();
        assert_eq!(hot_members(&world.record(ledger).await), if after { 1 } else { 3 });
        world.new_process();
        assert!(!world.offloader.offload_now(ledger, true).await.unwrap().released);
        assert_eq!(hot_members(&world.record(ledger).await), 1);
        world.new_process_at(OffloaderConfig::default().handle_grace.duration());
        world.script.halt(Step::Release, after);
        world.offloader.offload_now(ledger, true).await.unwrap_err();
        world.assert_readable(ledger).await;
        world.new_process_at(OffloaderConfig::default().handle_grace.duration());
        let report = world.offloader.offload_now(ledger, true).await.unwrap();
        assert_eq!((report.released, report.tier), (!after, Tier::Released));
        world.assert_readable(ledger).await;
    }
}

#[tokio::test(start_paused = true)]
async fn bookies_that_relay_and_no_grace_at_all_make_it_one_step() {
    let none = OffloaderConfig { handle_grace: ::config::Span::secs(0), ..OffloaderConfig::default() };
    for (config, apache) in [(OffloaderConfig::default(), &[][..]), (none, &["bk2:3181"][..])] {
        let world = World::with(config).await;
        let ledger = world.ledger(5, 30).await;
        register_bookies(&world, apache).await;
        assert!(world.offloader.offload_now(ledger, true).await.unwrap().released);
    }
}

/// What a bookie does that is not registered is unknown, whatever the others do.
#[tokio::test(start_paused = true)]
async fn a_member_that_is_down_makes_it_two_steps_and_does_not_stay() {
    for (down, apache) in [("bk1:3181", &[][..]), ("bk3:3181", &["bk1:3181", "bk2:3181", "bk3:3181"][..])] {
        let world = World::new().await;
        let ledger = world.ledger(5, 30).await;
        register_bookies(&world, apache).await;
        end_registration(&world, down).await;
        assert!(!world.offloader.offload_now(ledger, true).await.unwrap().released);
        let partly = world.record(ledger).await;
        let quorums = partly.metadata.quorums();
        let ensemble = &partly.metadata.segments()[0].ensemble;
        for entry in 0..u64::from(quorums.ensemble()) {
            let stays = |index: usize| !ledger::is_cold(&ensemble[index]) && ensemble[index].as_str() != down;
            let entry = EntryId::new(entry).unwrap();
            assert!(quorums.write_set(entry).any(stays), "{down} is down: {ensemble:?}");
        }
    }
}

/// Names of released ledgers are believed, also of those released in part; names that clients wrote themselves are not.
#[tokio::test(start_paused = true)]
async fn names_that_no_release_gave_are_not_the_clusters() {
    let world = World::new().await;
    let shards = ColdShards::new(world.store.clone());
    let ids = |of: u64, domain: &str| ColdId::for_ledger(id(of), 3, domain, 3181).unwrap();
    // Closed, with members that look like cold ids: of its shard, but without a record; then one with an index beyond all.
    let fake = world.ledger(5, 30).await;
    let record = world.record(fake).await;
    world.ledgers.update(fake, &record.metadata.released_to(&ids(5, "x")).unwrap(), record.version).await.unwrap();
    world.offloader.inner.scan().await.unwrap();
    assert_eq!(shards.names().await.unwrap(), None);
    let ledger = world.ledger(6, 30).await;
    register_bookies(&world, &["bk1:3181", "bk2:3181", "bk3:3181"]).await;
    assert!(!world.offloader.offload_now(ledger, true).await.unwrap().released);
    assert!(hot_members(&world.record(ledger).await) > 0);
    let named = shards.names().await.unwrap().unwrap();
    world.store.delete_if(&layout::cold_names_key(), Expect::Present).await.unwrap();
    let far = ColdId::of_shard(ledger::shard_of(id(7)), 100, &named.domain, named.port).unwrap();
    let quorums = ledger::Quorums::new(1, 1, 1).unwrap();
    let members = vec![far.to_bookie_id()];
    let open = ledger::LedgerMetadata::open(quorums, members, ledger::DigestType::Crc32c, ledger::Password::empty());
    let closed = open.unwrap().closed(EntryId::new(0), 1).unwrap();
    world.ledgers.create(id(7), &closed).await.unwrap();
    world.offloader.inner.scan().await.unwrap();
    assert_eq!(shards.names().await.unwrap(), Some(named), "those of the ledger that is released in part");
}
