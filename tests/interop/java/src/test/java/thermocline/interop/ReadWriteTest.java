package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Wire;

/** Ledgers are created, written, closed, read and deleted. */
@ExtendWith(SharedCluster.class)
class ReadWriteTest {
    private final Cluster cluster;

    ReadWriteTest(Cluster cluster) {
        this.cluster = cluster;
    }

    static Stream<Arguments> wiresAndDigests() {
        return Stream.of(Wire.values())
            .flatMap(wire -> Stream.of(DigestType.values()).map(digest -> Arguments.of(wire, digest)));
    }

    @ParameterizedTest
    @MethodSource("wiresAndDigests")
    void whatIsWrittenIsRead(Wire wire, DigestType digest) throws Exception {
        int count = 60;
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 2, 2, digest, Payloads.PASSWORD);
            Payloads.append(writer, count);
            assertEquals(count - 1, writer.getLastAddConfirmed());
            assertEquals(Payloads.length(count), writer.getLength());
            writer.close();
            LedgerHandle reader = client.openLedger(writer.getId(), digest, Payloads.PASSWORD);
            assertEquals(count - 1, reader.getLastAddConfirmed());
            assertEquals(Payloads.length(count), reader.getLength());
            Payloads.check(reader, 0, count - 1);
            Payloads.check(reader, 7, 7);
            reader.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLedgerIsReadOverTheOtherVersion(Wire wire) throws Exception {
        Wire other = wire == Wire.V2 ? Wire.V3 : Wire.V2;
        try (BookKeeper writing = cluster.connect(wire); BookKeeper reading = cluster.connect(other)) {
            LedgerHandle writer = writing.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 20);
            writer.close();
            Payloads.check(reading.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD), 0, 19);
        }
    }

    /** As many adds in flight as the client will have: they are confirmed in order, whatever order bookies answer in. */
    @ParameterizedTest
    @EnumSource
    void addsInFlightAreConfirmedInOrder(Wire wire) throws Exception {
        int count = 2000;
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            List<Long> confirmed = new ArrayList<>();
            List<CompletableFuture<Long>> adds = new ArrayList<>();
            for (int entry = 0; entry < count; entry++) {
                adds.add(writer.appendAsync(Payloads.of(writer.getId(), entry)).thenApply(id -> {
                    synchronized (confirmed) {
                        confirmed.add(id);
                    }
                    return id;
                }));
            }
            CompletableFuture.allOf(adds.toArray(CompletableFuture[]::new)).get(60, TimeUnit.SECONDS);
            for (int entry = 0; entry < count; entry++) {
                assertEquals(entry, confirmed.get(entry));
            }
            writer.close();
            Payloads.check(client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD), 0, count - 1);
        }
    }

    /** The client's frames are at most 5 MiB; with version 2 this is the longest payload that fits, to the byte. */
    @ParameterizedTest
    @EnumSource
    void entriesMayBeAsLongAsAFrame(Wire wire) throws Exception {
        // Length word, header, master key, metadata of the entry, CRC32C.
        int longest = wire == Wire.V2 ? 5 * 1024 * 1024 - (4 + 4 + 20 + 32 + 4) : 5 * 1024 * 1024 - 200;
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            for (int entry = 0; entry < 4; entry++) {
                writer.addEntry(Payloads.of(writer.getId(), entry, longest));
            }
            writer.close();
            LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            var entries = reader.readEntries(0, 3);
            for (int entry = 0; entry < 4; entry++) {
                byte[] read = entries.nextElement().getEntry();
                assertArrayEquals(Payloads.of(writer.getId(), entry, longest), read, "entry " + entry);
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void anEmptyLedgerIsClosedAndOpened(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            writer.close();
            LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(-1, reader.getLastAddConfirmed());
            assertEquals(0, reader.getLength());
            assertTrue(reader.isClosed());
            assertThrows(BKException.BKNoSuchEntryException.class, reader::readLastEntry);
        }
    }

    @ParameterizedTest
    @EnumSource
    void customMetadataComesBack(Wire wire) throws Exception {
        Map<String, byte[]> custom = Map.of("application", new byte[] {1, 0, -1}, "empty", new byte[0]);
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 2, 2, DigestType.MAC, Payloads.PASSWORD, custom);
            Payloads.append(writer, 3);
            writer.close();
            LedgerHandle reader = client.openLedger(writer.getId(), DigestType.MAC, Payloads.PASSWORD);
            assertEquals(custom.keySet(), reader.getCustomMetadata().keySet());
            custom.forEach((key, value) -> assertArrayEquals(value, reader.getCustomMetadata().get(key), key));
        }
    }

    /** An entry that was never written is told as such, and at once: not as an error, and not by a timeout. */
    @ParameterizedTest
    @EnumSource
    void whatWasNeverWrittenIsAbsent(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 5);
            LedgerHandle reader =
                client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertThrows(BKException.BKNoSuchEntryException.class, () -> reader.readUnconfirmedEntries(5, 5));
            writer.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void theLastEntryAndTheLastConfirmedAreRead(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 2, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 11);
            LedgerHandle tail = client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(9, tail.getLastAddConfirmed());
            assertEquals(9, tail.readLastConfirmed());
            assertEquals(9, tail.tryReadLastConfirmed());
            assertEquals(9, tail.readLastEntry().getEntryId());
            writer.close();
            LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(10, reader.readLastEntry().getEntryId());
            assertEquals(10, reader.readLastConfirmed());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aDeletedLedgerIsGone(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 3, 2, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 5);
            writer.close();
            client.deleteLedger(writer.getId());
            assertThrows(BKException.BKNoSuchLedgerExistsOnMetadataServerException.class,
                () -> client.openLedger(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD));
        }
    }
}
