use std::collections::{BTreeMap, BTreeSet};

use ::config::{Loaded, Origin};
use clap::Parser as _;

use super::*;
use crate::Settings;
use crate::args::{Cli, ConfigArgs};
use crate::settings::{self, BookieSettings, GatewaySettings, OffloaderSettings, RoleSettings};

fn loaded<T: RoleSettings>(profile: Profile) -> Loaded<T> {
    ::config::load(Some(settings::layer::<T>(profile).unwrap()), None, &[], &[]).unwrap()
}

/// The lines that set a key, as `bookie.key`, and whether a comment stands right above each.
fn keys_of(profile: Profile) -> BTreeMap<String, bool> {
    let lines: Vec<&str> = profile.text().lines().collect();
    let pairs = lines.windows(2).filter(|pair| !pair[1].starts_with('#') && pair[1].contains('='));
    pairs
        .map(|pair| (format!("bookie.{}", pair[1].split('=').next().unwrap().trim()), pair[0].starts_with('#')))
        .collect()
}

fn set_by_profile<T>(loaded: &Loaded<T>) -> BTreeMap<String, String> {
    let set = loaded.origins.iter().filter(|(_, _, origin)| matches!(origin, Origin::Profile(_)));
    set.map(|(key, value, _)| (key.clone(), value.clone())).collect()
}

/// What the role takes of each profile is as the file says, and not as the role's defaults are.
fn check<T: RoleSettings>(except: &[&str]) {
    let defaults: BTreeMap<String, String> = ::config::load::<T>(None, None, &[], &[])
        .unwrap()
        .origins
        .into_iter()
        .map(|(key, value, _)| (key, value))
        .collect();
    for profile in Profile::value_variants() {
        let set = set_by_profile(&loaded::<T>(*profile));
        let expected: BTreeSet<String> =
            keys_of(*profile).into_keys().filter(|key| !except.contains(&key.as_str())).collect();
        assert!(!expected.is_empty());
        assert_eq!(set.keys().cloned().collect::<BTreeSet<_>>(), expected, "{profile:?}");
        for (key, value) in set {
            assert_ne!(defaults.get(&key), Some(&value), "{profile:?}: {key} is the default");
        }
    }
}

#[test]
fn every_key_of_a_profile_differs_from_the_default_and_says_why() {
    check::<BookieSettings>(&[]);
    check::<Settings>(&["bookie.write_buffer_bytes"]);
    for profile in Profile::value_variants() {
        for (key, explained) in keys_of(*profile) {
            assert!(explained, "{profile:?}: no comment above {key}");
        }
    }
}

#[test]
fn every_profile_is_valid_for_bookie_and_standalone() {
    for profile in Profile::value_variants() {
        loaded::<BookieSettings>(*profile).value.bookie.validate().unwrap();
        let settings = loaded::<Settings>(*profile).value;
        settings.bookie.validate().unwrap();
        crate::standalone::check_memory(&settings).unwrap();
    }
}

#[test]
fn names_are_those_of_the_command_line() {
    for profile in Profile::value_variants() {
        assert_eq!(profile.to_possible_value().unwrap().get_name(), profile.name());
    }
    let refused = Cli::try_parse_from(["thermocline", "bookie", "--profile", "fast"]).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
    for profile in Profile::value_variants() {
        assert!(refused.to_string().contains(profile.name()), "{refused}");
    }
}

#[test]
fn file_environment_and_flag_win() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bookie.toml");
    std::fs::write(&path, "[bookie]\njournal_writes = 2\n").unwrap();
    let text = |pair: (&str, &str)| vec![(pair.0.to_owned(), pair.1.to_owned())];
    let env = text(("THERMOCLINE_BOOKIE__READ_CONCURRENCY", "3"));
    let flags = text(("bookie.segment_bytes", "128MiB"));
    let layer = settings::layer::<BookieSettings>(Profile::HddRaid).unwrap();
    let loaded = ::config::load::<BookieSettings>(Some(layer), Some(&path), &env, &flags).unwrap();
    let bookie = &loaded.value.bookie;
    assert_eq!((bookie.journal_writes, bookie.read_concurrency), (2, 3));
    assert_eq!(bookie.segment_bytes, ::config::ByteSize::mib(128));
    assert_eq!(set_by_profile(&loaded), BTreeMap::from([("bookie.group_bytes_max".to_owned(), "4MiB".to_owned())]));
}

#[test]
fn show_names_the_profile() {
    let args = ConfigArgs { profile: Some(Profile::Ephemeral), ..ConfigArgs::default() };
    let rows = settings::load::<BookieSettings>(&args, &[]).unwrap().rows();
    let sync = rows.iter().find(|row| row.key == "bookie.sync").unwrap();
    assert_eq!((sync.value.as_str(), sync.origin.as_str()), ("never", "profile ephemeral"));
}

#[test]
fn a_role_without_a_bookie_refuses_profiles() {
    let args = ConfigArgs { profile: Some(Profile::LocalNvme), ..ConfigArgs::default() };
    for (role, fault) in [
        ("a gateway", settings::load::<GatewaySettings>(&args, &[]).unwrap_err()),
        ("an offloader", settings::load::<OffloaderSettings>(&args, &[]).unwrap_err()),
    ] {
        assert_eq!(fault.exit_code(), 2);
        assert!(fault.to_string().contains(&format!("--profile local-nvme: {role} has no bookie")), "{fault}");
    }
}
