//! The buckets: every decision about objects and uploads, under one lock, without I/O.

use std::collections::BTreeMap;

use bytes::Bytes;
use s3s::dto::{Checksum, ETagCondition};
use s3s::{S3Error, S3Result, s3_error};

use super::blob::Blob;
use super::{Options, Unfinished, checksum};

/// What happened to a bucket's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct History {
    /// Objects written under a key that had none.
    pub created: u64,
    /// Objects that took the place of another.
    pub replaced: u64,
    /// Objects removed.
    pub deleted: u64,
    /// Writes refused because of their condition.
    pub refused: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) body: Blob,
    pub(super) etag: String,
    pub(super) modified_ms: u64,
    pub(super) content_type: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) sums: Checksum,
    pub(super) sum_is_composite: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) body: Blob,
    pub(super) etag: String,
    pub(super) sums: Checksum,
    pub(super) modified_ms: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Upload {
    pub(super) key: String,
    pub(super) begun_ms: u64,
    pub(super) algorithm: Option<&'static str>,
    pub(super) content_type: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) parts: BTreeMap<i32, Part>,
}

impl Upload {
    fn bytes(&self) -> u64 {
        self.parts.values().map(|part| part.body.bytes()).sum()
    }
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    pub(super) objects: BTreeMap<String, Object>,
    pub(super) uploads: BTreeMap<String, Upload>,
    history: History,
}

/// The condition of a write.
#[derive(Debug, Clone, Default)]
pub(super) struct Condition {
    pub(super) if_none_match: Option<ETagCondition>,
    pub(super) if_match: Option<ETagCondition>,
}

impl Condition {
    /// Whether a write may take the place of `found`.
    fn check(&self, found: Option<&Object>) -> S3Result<()> {
        let names = |condition: &ETagCondition, object: &Object| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(etag) => etag.value() == object.etag,
        };
        match (&self.if_none_match, &self.if_match, found) {
            (Some(unwanted), _, Some(object)) if names(unwanted, object) => Err(precondition_failed()),
            (_, Some(wanted), Some(object)) if !names(wanted, object) => Err(precondition_failed()),
            (_, Some(_), None) => Err(s3_error!(NoSuchKey)),
            _ => Ok(()),
        }
    }
}

fn precondition_failed() -> S3Error {
    s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold.")
}

/// A part as the last step of an upload names it.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) number: i32,
    pub(super) etag: String,
    pub(super) sums: Checksum,
}

#[derive(Debug)]
pub(super) struct Store {
    buckets: BTreeMap<String, Bucket>,
    used_bytes: u64,
    bytes_max: u64,
    part_bytes_min: u64,
    conditional_writes: bool,
}

impl Store {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            buckets: [(options.bucket.clone(), Bucket::default())].into(),
            used_bytes: 0,
            bytes_max: options.bytes_max,
            part_bytes_min: options.part_bytes_min,
            conditional_writes: options.conditional_writes,
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.buckets.keys().cloned().collect()
    }

    pub(super) fn create_bucket(&mut self, name: &str) -> S3Result<()> {
        if self.buckets.contains_key(name) {
            return Err(s3_error!(BucketAlreadyOwnedByYou));
        }
        self.buckets.insert(name.to_owned(), Bucket::default());
        Ok(())
    }

    pub(super) fn bucket(&self, name: &str) -> S3Result<&Bucket> {
        self.buckets.get(name).ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))
    }

    fn bucket_mut(&mut self, name: &str) -> S3Result<&mut Bucket> {
        self.buckets.get_mut(name).ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))
    }

    pub(super) fn get(&self, bucket: &str, key: &str) -> S3Result<&Object> {
        self.bucket(bucket)?.objects.get(key).ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."))
    }

    /// Writes an object, if its condition holds: check and write are one step.
    pub(super) fn put(&mut self, bucket: &str, key: &str, object: Object, condition: &Condition) -> S3Result<()> {
        let conditional = self.conditional_writes;
        let found = self.bucket_mut(bucket)?.objects.get(key);
        if conditional && let Err(refusal) = condition.check(found) {
            self.bucket_mut(bucket)?.history.refused += 1;
            return Err(refusal);
        }
        let freed = found.map_or(0, |object| object.body.bytes());
        self.take_room(object.body.bytes(), freed)?;
        let bucket = self.bucket_mut(bucket)?;
        match bucket.objects.insert(key.to_owned(), object) {
            Some(_) => bucket.history.replaced += 1,
            None => bucket.history.created += 1,
        }
        Ok(())
    }

    /// Removes an object; one that is not there counts as removed.
    pub(super) fn delete(&mut self, bucket: &str, key: &str) -> S3Result<()> {
        let bucket = self.bucket_mut(bucket)?;
        if let Some(object) = bucket.objects.remove(key) {
            bucket.history.deleted += 1;
            self.used_bytes -= object.body.bytes();
        }
        Ok(())
    }

    pub(super) fn begin_upload(&mut self, bucket: &str, upload_id: &str, upload: Upload) -> S3Result<()> {
        self.bucket_mut(bucket)?.uploads.insert(upload_id.to_owned(), upload);
        Ok(())
    }

    pub(super) fn upload(&self, bucket: &str, key: &str, upload_id: &str) -> S3Result<&Upload> {
        let upload = self.bucket(bucket)?.uploads.get(upload_id).filter(|upload| upload.key == key);
        upload.ok_or_else(no_such_upload)
    }

    pub(super) fn put_part(
        &mut self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        number: i32,
        part: Part,
    ) -> S3Result<()> {
        if !(1..=10_000).contains(&number) {
            return Err(s3_error!(InvalidArgument, "Part number must be an integer between 1 and 10000, inclusive"));
        }
        let freed = self.upload(bucket, key, upload_id)?.parts.get(&number).map_or(0, |part| part.body.bytes());
        self.take_room(part.body.bytes(), freed)?;
        let upload = self.bucket_mut(bucket)?.uploads.get_mut(upload_id).ok_or_else(no_such_upload)?;
        upload.parts.insert(number, part);
        Ok(())
    }

    pub(super) fn abort(&mut self, bucket: &str, key: &str, upload_id: &str) -> S3Result<()> {
        self.upload(bucket, key, upload_id)?;
        if let Some(upload) = self.bucket_mut(bucket)?.uploads.remove(upload_id) {
            self.used_bytes -= upload.bytes();
        }
        Ok(())
    }

    /// Joins the named parts to an object, if its condition holds. The upload is then gone, with the parts that were not named.
    pub(super) fn complete(
        &mut self,
        bucket: &str,
        key: &str,
        upload_id: &str,
        named: &[Named],
        condition: &Condition,
        now_ms: u64,
    ) -> S3Result<Object> {
        let upload = self.upload(bucket, key, upload_id)?;
        let object = join(upload, named, self.part_bytes_min, now_ms)?;
        let conditional = self.conditional_writes;
        let found = self.bucket(bucket)?.objects.get(key);
        if conditional && let Err(refusal) = condition.check(found) {
            self.bucket_mut(bucket)?.history.refused += 1;
            return Err(refusal);
        }
        let replaced = found.map_or(0, |object| object.body.bytes());
        let dropped = upload.bytes() - object.body.bytes();
        self.used_bytes -= replaced + dropped;
        let bucket = self.bucket_mut(bucket)?;
        bucket.uploads.remove(upload_id);
        match bucket.objects.insert(key.to_owned(), object.clone()) {
            Some(_) => bucket.history.replaced += 1,
            None => bucket.history.created += 1,
        }
        Ok(object)
    }

    pub(super) fn objects(&self, bucket: &str) -> Vec<(String, u64)> {
        let objects = self.buckets.get(bucket).into_iter().flat_map(|bucket| &bucket.objects);
        objects.map(|(key, object)| (key.clone(), object.body.bytes())).collect()
    }

    pub(super) fn object(&self, bucket: &str, key: &str) -> Option<Bytes> {
        self.buckets.get(bucket)?.objects.get(key).map(|object| object.body.to_bytes())
    }

    pub(super) fn unfinished(&self, bucket: &str) -> Vec<Unfinished> {
        let uploads = self.buckets.get(bucket).into_iter().flat_map(|bucket| &bucket.uploads);
        let mut found: Vec<Unfinished> = uploads
            .map(|(upload_id, upload)| Unfinished {
                key: upload.key.clone(),
                upload_id: upload_id.clone(),
                parts: upload.parts.len(),
            })
            .collect();
        found.sort_by(|a, b| (&a.key, &a.upload_id).cmp(&(&b.key, &b.upload_id)));
        found
    }

    pub(super) fn history(&self, bucket: &str) -> History {
        self.buckets.get(bucket).map_or_else(History::default, |bucket| bucket.history)
    }

    fn take_room(&mut self, bytes: u64, freed: u64) -> S3Result<()> {
        let used = self.used_bytes - freed + bytes;
        if used > self.bytes_max {
            let mut error = S3Error::with_message(
                s3s::S3ErrorCode::Custom("QuotaExceeded".into()),
                format!("The server's {} bytes are spent.", self.bytes_max),
            );
            error.set_status_code(http::StatusCode::FORBIDDEN);
            return Err(error);
        }
        self.used_bytes = used;
        Ok(())
    }
}

fn no_such_upload() -> S3Error {
    s3_error!(
        NoSuchUpload,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed."
    )
}

/// The object that the named parts of an upload make.
fn join(upload: &Upload, named: &[Named], part_bytes_min: u64, now_ms: u64) -> S3Result<Object> {
    if named.is_empty() {
        return Err(s3_error!(MalformedXML, "You must specify at least one part"));
    }
    if !named.is_sorted_by(|a, b| a.number < b.number) {
        return Err(s3_error!(InvalidPartOrder, "The list of parts was not in ascending order."));
    }
    let mut body = Blob::default();
    let mut sums = Vec::new();
    for (place, wanted) in named.iter().enumerate() {
        let part = upload.parts.get(&wanted.number).filter(|part| part.etag == wanted.etag).ok_or_else(|| {
            s3_error!(InvalidPart, "One or more of the specified parts could not be found, or its tag did not match.")
        })?;
        for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"] {
            let claimed = checksum::of(&wanted.sums, algorithm);
            if claimed.is_some() && claimed != checksum::of(&part.sums, algorithm) {
                return Err(s3_error!(InvalidPart, "The {algorithm} of part {} did not match.", wanted.number));
            }
        }
        if place + 1 < named.len() && part.body.bytes() < part_bytes_min {
            return Err(s3_error!(
                EntityTooSmall,
                "Your proposed upload is smaller than the minimum allowed size: part {} has {} bytes, not {part_bytes_min}",
                wanted.number,
                part.body.bytes()
            ));
        }
        body.append(&part.body);
        sums.push(&part.sums);
    }
    let whole = upload.algorithm.map(|algorithm| checksum::of_parts(algorithm, &body, &sums)).unwrap_or_default();
    Ok(Object {
        etag: format!("{}-{}", checksum::etag(&body), named.len()),
        body,
        modified_ms: now_ms,
        content_type: upload.content_type.clone(),
        metadata: upload.metadata.clone(),
        sums: whole,
        sum_is_composite: upload.algorithm.is_some_and(|algorithm| algorithm != "CRC64NVME"),
    })
}
