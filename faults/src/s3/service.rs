//! The S3 operations: from the wire's words to the buckets and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use s3s::dto::*;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3, S3Request, S3Response, S3Result, TrailingHeaders, s3_error};

use super::World;
use super::blob::Blob;
use super::bucket::{Condition, Named, Object as Stored, Part as StoredPart, Upload};
use super::checksum::{self, Claimed};
use super::gate::timestamp;
use super::listing::{Line, Wanted, page};
use crate::pace::Paced;

const PAGE: i32 = 1_000;

#[derive(Clone)]
pub(super) struct Objects {
    world: Arc<World>,
}

impl Objects {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world }
    }
}

impl ByteStream for Paced {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(self.remaining())
    }
}

type Answer<T> = S3Result<S3Response<T>>;

fn answer<T>(output: T) -> Answer<T> {
    Ok(S3Response::new(output))
}

/// Takes a request's whole body and verifies what it claims to be.
async fn take_body(
    body: Option<StreamingBlob>,
    length: Option<i64>,
    mut claimed: Claimed,
    trailers: Option<&TrailingHeaders>,
) -> S3Result<(Blob, Checksum)> {
    let mut blob = Blob::default();
    if let Some(mut body) = body {
        while let Some(piece) = body.next().await {
            blob.push(piece.map_err(|error| s3_error!(IncompleteBody, "read the body: {error}"))?);
        }
    }
    if length.is_some_and(|length| u64::try_from(length) != Ok(blob.bytes())) {
        return Err(s3_error!(IncompleteBody));
    }
    if let Some(trailers) = trailers.and_then(TrailingHeaders::take) {
        claimed.add_trailers(&trailers);
    }
    let sums = claimed.verify(&blob)?;
    Ok((blob, sums))
}

fn strong(etag: &str) -> Option<ETag> {
    Some(ETag::Strong(etag.to_owned()))
}

fn sorted(metadata: Option<Metadata>) -> BTreeMap<String, String> {
    metadata.unwrap_or_default().into_iter().collect()
}

fn unsorted(metadata: &BTreeMap<String, String>) -> Option<Metadata> {
    (!metadata.is_empty()).then(|| metadata.clone().into_iter().collect())
}

fn sum_type(object: &Stored) -> Option<ChecksumType> {
    let some = ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]
        .into_iter()
        .any(|algorithm| checksum::of(&object.sums, algorithm).is_some());
    let name = if object.sum_is_composite { ChecksumType::COMPOSITE } else { ChecksumType::FULL_OBJECT };
    some.then(|| ChecksumType::from_static(name))
}

/// What the conditions of a read say of the object that was found.
fn may_read(
    object: &Stored,
    if_match: Option<&IfMatch>,
    if_none_match: Option<&IfNoneMatch>,
    if_modified: Option<&Timestamp>,
    if_unmodified: Option<&Timestamp>,
) -> S3Result<()> {
    let names = |condition: &ETagCondition| match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(etag) => etag.value() == object.etag,
    };
    // Times on the wire are whole seconds.
    let modified = timestamp(object.modified_ms / 1_000 * 1_000);
    if if_match.is_some_and(|condition| !names(condition)) {
        return Err(s3_error!(PreconditionFailed));
    }
    if if_match.is_none() && if_unmodified.is_some_and(|time| modified > *time) {
        return Err(s3_error!(PreconditionFailed));
    }
    if if_none_match.is_some_and(names) {
        return Err(s3_error!(NotModified));
    }
    if if_none_match.is_none() && if_modified.is_some_and(|time| modified <= *time) {
        return Err(s3_error!(NotModified));
    }
    Ok(())
}

#[async_trait::async_trait]
impl S3 for Objects {
    async fn create_bucket(&self, req: S3Request<CreateBucketInput>) -> Answer<CreateBucketOutput> {
        self.world.store().create_bucket(&req.input.bucket)?;
        answer(CreateBucketOutput { location: Some(format!("/{}", req.input.bucket)) })
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        self.world.store().bucket(&req.input.bucket)?;
        answer(HeadBucketOutput { bucket_region: self.world.options.region.clone(), ..HeadBucketOutput::default() })
    }

    async fn list_buckets(&self, _: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
        let names = self.world.store().names();
        let buckets = names.into_iter().map(|name| Bucket { name: Some(name), ..Bucket::default() }).collect();
        answer(ListBucketsOutput { buckets: Some(buckets), ..ListBucketsOutput::default() })
    }

    async fn get_bucket_location(&self, req: S3Request<GetBucketLocationInput>) -> Answer<GetBucketLocationOutput> {
        self.world.store().bucket(&req.input.bucket)?;
        let location_constraint = self.world.options.region.clone().map(BucketLocationConstraint::from);
        answer(GetBucketLocationOutput { location_constraint })
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        let input = req.input;
        self.world.store().bucket(&input.bucket)?;
        let claimed = Claimed {
            md5: input.content_md5,
            sums: Checksum {
                checksum_crc32: input.checksum_crc32,
                checksum_crc32c: input.checksum_crc32c,
                checksum_crc64nvme: input.checksum_crc64nvme,
                checksum_sha1: input.checksum_sha1,
                checksum_sha256: input.checksum_sha256,
                ..Checksum::default()
            },
            algorithm: input.checksum_algorithm.map(|algorithm| algorithm.as_str().to_owned()),
        };
        let (body, sums) = take_body(input.body, input.content_length, claimed, req.trailing_headers.as_ref()).await?;
        let object = Stored {
            etag: checksum::etag(&body),
            body,
            modified_ms: self.world.now_ms(),
            content_type: input.content_type,
            metadata: sorted(input.metadata),
            sums: sums.clone(),
            sum_is_composite: false,
        };
        let output = PutObjectOutput {
            e_tag: strong(&object.etag),
            checksum_type: sum_type(&object),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            ..PutObjectOutput::default()
        };
        let condition = Condition { if_none_match: input.if_none_match, if_match: input.if_match };
        self.world.store().put(&input.bucket, &input.key, object, &condition)?;
        answer(output)
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        let input = req.input;
        let model = self.world.options.model;
        let wait = model.first_byte(&self.world.rng);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let object = self.world.store().get(&input.bucket, &input.key)?.clone();
        may_read(
            &object,
            input.if_match.as_ref(),
            input.if_none_match.as_ref(),
            input.if_modified_since.as_ref(),
            input.if_unmodified_since.as_ref(),
        )?;
        let whole = object.body.bytes();
        let range = input.range.map(|range| range.check(whole)).transpose()?;
        let content_range = range.as_ref().map(|range| format!("bytes {}-{}/{whole}", range.start, range.end - 1));
        let sums = if range.is_none() { object.sums.clone() } else { Checksum::default() };
        let range = range.unwrap_or(0..whole);
        let body = Paced::new(object.body.slice(&range), model.bytes_per_second);
        answer(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(range.end - range.start).ok(),
            content_range,
            content_type: object.content_type.clone(),
            e_tag: strong(&object.etag),
            last_modified: Some(timestamp(object.modified_ms)),
            metadata: unsorted(&object.metadata),
            checksum_type: sum_type(&object),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            body: Some(StreamingBlob::new(body)),
            ..GetObjectOutput::default()
        })
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        let input = req.input;
        let store = self.world.store();
        let object = store.get(&input.bucket, &input.key)?;
        may_read(
            object,
            input.if_match.as_ref(),
            input.if_none_match.as_ref(),
            input.if_modified_since.as_ref(),
            input.if_unmodified_since.as_ref(),
        )?;
        answer(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(object.body.bytes()).ok(),
            content_type: object.content_type.clone(),
            e_tag: strong(&object.etag),
            last_modified: Some(timestamp(object.modified_ms)),
            metadata: unsorted(&object.metadata),
            checksum_type: sum_type(object),
            checksum_crc32: object.sums.checksum_crc32.clone(),
            checksum_crc32c: object.sums.checksum_crc32c.clone(),
            checksum_crc64nvme: object.sums.checksum_crc64nvme.clone(),
            checksum_sha1: object.sums.checksum_sha1.clone(),
            checksum_sha256: object.sums.checksum_sha256.clone(),
            ..HeadObjectOutput::default()
        })
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        self.world.store().delete(&req.input.bucket, &req.input.key)?;
        answer(DeleteObjectOutput::default())
    }

    async fn delete_objects(&self, req: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        let input = req.input;
        let mut store = self.world.store();
        let mut deleted = Vec::new();
        for object in input.delete.objects {
            store.delete(&input.bucket, &object.key)?;
            deleted.push(DeletedObject { key: Some(object.key), ..DeletedObject::default() });
        }
        let quiet = input.delete.quiet.unwrap_or(false);
        answer(DeleteObjectsOutput { deleted: (!quiet).then_some(deleted), ..DeleteObjectsOutput::default() })
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        let input = req.input;
        let CopySource::Bucket { bucket, key, .. } = input.copy_source else {
            return Err(s3_error!(NotImplemented, "only copies between buckets of this server"));
        };
        let now_ms = self.world.now_ms();
        let mut store = self.world.store();
        let object = Stored { modified_ms: now_ms, ..store.get(&bucket, &key)?.clone() };
        let e_tag = strong(&object.etag);
        store.put(&input.bucket, &input.key, object, &Condition::default())?;
        let result = CopyObjectResult { e_tag, last_modified: Some(timestamp(now_ms)), ..CopyObjectResult::default() };
        answer(CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() })
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        let input = req.input;
        let most = input.max_keys.unwrap_or(PAGE).clamp(0, PAGE);
        let store = self.world.store();
        let objects = &store.bucket(&input.bucket)?.objects;
        let wanted = Wanted {
            prefix: input.prefix.as_deref().unwrap_or(""),
            delimiter: input.delimiter.as_deref(),
            after: input.continuation_token.as_deref().or(input.start_after.as_deref()),
            most: usize::try_from(most).unwrap_or(0),
        };
        let from = wanted.after.unwrap_or("").max(wanted.prefix);
        let (lines, next) = page(objects.range(from.to_owned()..).map(|(key, _)| key.as_str()), &wanted);
        let (mut contents, mut common) = (Vec::new(), Vec::new());
        for line in lines {
            match line {
                Line::Common(prefix) => common.push(CommonPrefix { prefix: Some(prefix) }),
                Line::Key(key) => {
                    let Some(object) = objects.get(&key) else { continue };
                    contents.push(Object {
                        e_tag: strong(&object.etag),
                        key: Some(key),
                        last_modified: Some(timestamp(object.modified_ms)),
                        size: i64::try_from(object.body.bytes()).ok(),
                        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                        ..Object::default()
                    });
                }
            }
        }
        answer(ListObjectsV2Output {
            key_count: i32::try_from(contents.len() + common.len()).ok(),
            is_truncated: Some(next.is_some()),
            next_continuation_token: next,
            contents: Some(contents),
            common_prefixes: Some(common),
            name: Some(input.bucket),
            prefix: input.prefix,
            delimiter: input.delimiter,
            max_keys: Some(most),
            continuation_token: input.continuation_token,
            start_after: input.start_after,
            ..ListObjectsV2Output::default()
        })
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        let input = req.input;
        let algorithm =
            input.checksum_algorithm.as_ref().map(|name| checksum::known_algorithm(name.as_str())).transpose()?;
        let upload_id = self.world.rng.uuid().simple().to_string();
        let upload = Upload {
            key: input.key.clone(),
            begun_ms: self.world.now_ms(),
            algorithm,
            content_type: input.content_type,
            metadata: sorted(input.metadata),
            parts: BTreeMap::new(),
        };
        self.world.store().begin_upload(&input.bucket, &upload_id, upload)?;
        answer(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(upload_id),
            checksum_algorithm: input.checksum_algorithm,
            ..CreateMultipartUploadOutput::default()
        })
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        let input = req.input;
        let algorithm = self.world.store().upload(&input.bucket, &input.key, &input.upload_id)?.algorithm;
        let claimed = Claimed {
            md5: input.content_md5,
            sums: Checksum {
                checksum_crc32: input.checksum_crc32,
                checksum_crc32c: input.checksum_crc32c,
                checksum_crc64nvme: input.checksum_crc64nvme,
                checksum_sha1: input.checksum_sha1,
                checksum_sha256: input.checksum_sha256,
                ..Checksum::default()
            },
            algorithm: algorithm.map(str::to_owned),
        };
        let (body, sums) = take_body(input.body, input.content_length, claimed, req.trailing_headers.as_ref()).await?;
        let etag = checksum::etag(&body);
        let part = StoredPart { body, etag: etag.clone(), sums: sums.clone(), modified_ms: self.world.now_ms() };
        self.world.store().put_part(&input.bucket, &input.key, &input.upload_id, input.part_number, part)?;
        answer(UploadPartOutput {
            e_tag: strong(&etag),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            ..UploadPartOutput::default()
        })
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let input = req.input;
        let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let named: Vec<Named> = parts
            .into_iter()
            .map(|part| Named {
                number: part.part_number.unwrap_or(0),
                etag: part.e_tag.map(ETag::into_value).unwrap_or_default(),
                sums: Checksum {
                    checksum_crc32: part.checksum_crc32,
                    checksum_crc32c: part.checksum_crc32c,
                    checksum_crc64nvme: part.checksum_crc64nvme,
                    checksum_sha1: part.checksum_sha1,
                    checksum_sha256: part.checksum_sha256,
                    ..Checksum::default()
                },
            })
            .collect();
        let condition = Condition { if_none_match: input.if_none_match, if_match: input.if_match };
        let now_ms = self.world.now_ms();
        let object =
            self.world.store().complete(&input.bucket, &input.key, &input.upload_id, &named, &condition, now_ms)?;
        answer(CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: strong(&object.etag),
            checksum_type: sum_type(&object),
            checksum_crc32: object.sums.checksum_crc32,
            checksum_crc32c: object.sums.checksum_crc32c,
            checksum_crc64nvme: object.sums.checksum_crc64nvme,
            checksum_sha1: object.sums.checksum_sha1,
            checksum_sha256: object.sums.checksum_sha256,
            ..CompleteMultipartUploadOutput::default()
        })
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        self.world.store().abort(&req.input.bucket, &req.input.key, &req.input.upload_id)?;
        answer(AbortMultipartUploadOutput::default())
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        let input = req.input;
        let most = input.max_parts.unwrap_or(PAGE).clamp(0, PAGE);
        let after = input.part_number_marker.unwrap_or(0);
        let store = self.world.store();
        let upload = store.upload(&input.bucket, &input.key, &input.upload_id)?;
        let mut rest = upload.parts.range(after.saturating_add(1)..);
        let parts: Vec<Part> = rest
            .by_ref()
            .take(usize::try_from(most).unwrap_or(0))
            .map(|(number, part)| Part {
                part_number: Some(*number),
                e_tag: strong(&part.etag),
                size: i64::try_from(part.body.bytes()).ok(),
                last_modified: Some(timestamp(part.modified_ms)),
                checksum_crc32: part.sums.checksum_crc32.clone(),
                checksum_crc32c: part.sums.checksum_crc32c.clone(),
                checksum_crc64nvme: part.sums.checksum_crc64nvme.clone(),
                checksum_sha1: part.sums.checksum_sha1.clone(),
                checksum_sha256: part.sums.checksum_sha256.clone(),
            })
            .collect();
        let truncated = rest.next().is_some();
        answer(ListPartsOutput {
            next_part_number_marker: parts.last().and_then(|part| part.part_number).filter(|_| truncated),
            is_truncated: Some(truncated),
            max_parts: Some(most),
            part_number_marker: Some(after),
            parts: Some(parts),
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            checksum_algorithm: upload.algorithm.map(ChecksumAlgorithm::from_static),
            ..ListPartsOutput::default()
        })
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        let input = req.input;
        let most = usize::try_from(input.max_uploads.unwrap_or(PAGE).clamp(0, PAGE)).unwrap_or(0);
        let prefix = input.prefix.as_deref().unwrap_or("");
        let key_marker = input.key_marker.as_deref().unwrap_or("");
        let id_marker = input.upload_id_marker.as_deref().unwrap_or("");
        let store = self.world.store();
        let mut found: Vec<(&str, &str, &Upload)> = store
            .bucket(&input.bucket)?
            .uploads
            .iter()
            .map(|(id, upload)| (upload.key.as_str(), id.as_str(), upload))
            .filter(|(key, id, _)| {
                let after = key_marker.is_empty()
                    || *key > key_marker
                    || (*key == key_marker && !id_marker.is_empty() && *id > id_marker);
                key.starts_with(prefix) && after
            })
            .collect();
        found.sort_by_key(|(key, id, _)| (*key, *id));
        let truncated = found.len() > most;
        found.truncate(most);
        let next = found.last().filter(|_| truncated).map(|(key, id, _)| ((*key).to_owned(), (*id).to_owned()));
        let uploads = found
            .into_iter()
            .map(|(key, id, upload)| MultipartUpload {
                key: Some(key.to_owned()),
                upload_id: Some(id.to_owned()),
                initiated: Some(timestamp(upload.begun_ms)),
                checksum_algorithm: upload.algorithm.map(ChecksumAlgorithm::from_static),
                ..MultipartUpload::default()
            })
            .collect();
        let (next_key_marker, next_upload_id_marker) = next.unzip();
        answer(ListMultipartUploadsOutput {
            is_truncated: Some(truncated),
            next_key_marker,
            next_upload_id_marker,
            uploads: Some(uploads),
            prefix: input.prefix.clone(),
            bucket: Some(input.bucket.clone()),
            ..ListMultipartUploadsOutput::default()
        })
    }
}
