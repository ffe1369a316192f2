//! The least a store must grant: texts to paste into each cloud's settings.

use url::Url;

use crate::store::PROBES;

/// A least-privilege policy for the store at `url`: S3 IAM JSON, a Google custom role with its binding, an Azure custom role, or for
/// a directory what its owner must be. `None` for a URL that names no store.
pub fn policy(url: &Url) -> Option<String> {
    let host = url.host_str().unwrap_or_default();
    let prefix = url.path().trim_matches('/');
    match url.scheme() {
        "s3" if !host.is_empty() => Some(s3(host, prefix)),
        "gs" if !host.is_empty() => Some(google(host, prefix)),
        "az" if !host.is_empty() => Some(azure(host)),
        "file" => Some(format!(
            "The user that runs Thermocline must own {} and may read, write and search it (mode 0700 is enough).\n",
            url.path()
        )),
        _ => None,
    }
}

/// Below the prefix of a bucket.
fn below(prefix: &str, rest: &str) -> String {
    if prefix.is_empty() { rest.to_owned() } else { format!("{prefix}/{rest}") }
}

fn s3(bucket: &str, prefix: &str) -> String {
    let (objects, probes) = (below(prefix, "*"), below(prefix, &format!("{PROBES}/*")));
    // Looking up an object that is not there says so only to those who may list the bucket.
    let condition = if prefix.is_empty() {
        String::new()
    } else {
        format!(",\n      \"Condition\": {{ \"StringLike\": {{ \"s3:prefix\": [\"{prefix}\", \"{prefix}/*\"] }} }}")
    };
    format!(
        r#"{{
  "Version": "2012-10-17",
  "Statement": [
    {{
      "Sid": "ReadAndWriteObjects",
      "Effect": "Allow",
      "Action": ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"],
      "Resource": "arn:aws:s3:::{bucket}/{objects}"
    }},
    {{
      "Sid": "RemoveOwnProbes",
      "Effect": "Allow",
      "Action": "s3:DeleteObject",
      "Resource": "arn:aws:s3:::{bucket}/{probes}"
    }},
    {{
      "Sid": "ListAndTellAbsentFromDenied",
      "Effect": "Allow",
      "Action": "s3:ListBucket",
      "Resource": "arn:aws:s3:::{bucket}"{condition}
    }}
  ]
}}
"#
    )
}

fn google(bucket: &str, prefix: &str) -> String {
    let probes = below(prefix, PROBES);
    format!(
        r#"# A custom role for reading, writing and listing, bound on the bucket {bucket}:
title: Thermocline cold store
stage: GA
includedPermissions:
  - storage.objects.create
  - storage.objects.get
  - storage.objects.list
  - storage.multipartUploads.create
  - storage.multipartUploads.abort
# And, to remove the probes of checks, storage.objects.delete under the condition
#   resource.name.startsWith("projects/_/buckets/{bucket}/objects/{probes}/")
# In one command, with the predefined role that comes closest:
#   gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=serviceAccount:NAME --role=roles/storage.objectUser
"#
    )
}

fn azure(container: &str) -> String {
    format!(
        r#"{{
  "Name": "Thermocline cold store",
  "Description": "Reads, writes and lists blobs of the container {container}; deletes only the probes of checks.",
  "Actions": [],
  "DataActions": [
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read",
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/write",
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/add/action",
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/delete"
  ],
  "AssignableScopes": [
    "/subscriptions/SUBSCRIPTION/resourceGroups/GROUP/providers/Microsoft.Storage/storageAccounts/ACCOUNT/blobServices/default/containers/{container}"
  ]
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Option<String> {
        policy(&Url::parse(url).unwrap())
    }

    #[test]
    fn s3_grants_the_prefix_only() {
        let text = of("s3://logs/team/a?region=eu-west-1").unwrap();
        for expected in [
            r#""Resource": "arn:aws:s3:::logs/team/a/*""#,
            r#""Resource": "arn:aws:s3:::logs/team/a/.thermocline-check/*""#,
            r#""s3:prefix": ["team/a", "team/a/*"]"#,
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert_eq!(text.matches("s3:DeleteObject").count(), 1);
        let whole = of("s3://logs").unwrap();
        assert!(whole.contains("arn:aws:s3:::logs/*") && !whole.contains("Condition"), "{whole}");
    }

    #[test]
    fn other_stores_have_theirs_and_no_store_has_none() {
        assert!(of("gs://logs/a").unwrap().contains("buckets/logs/objects/a/.thermocline-check/"));
        assert!(of("az://logs/a").unwrap().contains("containers/logs\""));
        assert!(of("file:///srv/cold").unwrap().contains("/srv/cold"));
        assert_eq!(of("memory:///"), None);
    }
}
