package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.SharedCluster;
import thermocline.interop.cluster.Waiting;
import thermocline.interop.cluster.Wire;

/** Readers follow a ledger that is being written. */
@ExtendWith(SharedCluster.class)
class TailingTest {
    private static final Duration SOON = Duration.ofSeconds(20);

    private final Cluster cluster;

    TailingTest(Cluster cluster) {
        this.cluster = cluster;
    }

    /** What is confirmed travels in the next entry: after n entries a reader knows of n - 1. */
    @ParameterizedTest
    @EnumSource
    void anOpenLedgerIsFollowed(Wire wire) throws Exception {
        try (BookKeeper client = cluster.connect(wire)) {
            LedgerHandle writer = client.createLedger(3, 3, 3, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 10);
            LedgerHandle reader =
                client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(8, reader.getLastAddConfirmed());
            Payloads.check(reader, 0, 8);
            Payloads.append(writer, 5);
            assertEquals(13, reader.readLastConfirmed());
            Payloads.check(reader, 9, 13);
            // Beyond the confirmed end only at the reader's own risk.
            Payloads.check(writer.getId(), 14, 14, reader.readUnconfirmedEntries(14, 14));
            assertFalse(reader.isClosed());
            writer.close();
            Waiting.until("the reader hears that the ledger is closed", SOON, reader::isClosed);
            assertEquals(14, reader.readLastConfirmed());
        }
    }

    /** Version 3 tells with every entry what the bookie knows to be confirmed. */
    @Test
    void anyReadMovesTheConfirmedEnd() throws Exception {
        try (BookKeeper client = cluster.connect(Wire.V3)) {
            LedgerHandle writer = client.createLedger(3, 3, 3, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 5);
            LedgerHandle reader = client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            assertEquals(3, reader.getLastAddConfirmed());
            Payloads.append(writer, 5);
            Payloads.check(reader, 0, 0);
            assertEquals(8, reader.getLastAddConfirmed());
            writer.close();
        }
    }

    /** A writer that pauses tells its confirmed end all the same, and a killed bookie knows it again. */
    @ParameterizedTest
    @EnumSource
    void theConfirmedEndIsToldExplicitly(Wire wire) throws Exception {
        ClientConfiguration configuration = cluster.configuration(wire);
        configuration.setExplictLacInterval(50);
        try (BookKeeper writing = new BookKeeper(configuration); BookKeeper reading = cluster.connect(wire)) {
            LedgerHandle writer = writing.createLedger(3, 3, 3, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 10);
            LedgerHandle reader =
                reading.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            Waiting.until("the explicit confirmed end is read", SOON, () -> reader.readExplicitLastConfirmed() == 9);
            Payloads.check(reader, 9, 9);
            writer.close();
        }
    }

    @Test
    void aLongPollIsWokenByTheNextEntry() throws Exception {
        try (BookKeeper client = cluster.connect(Wire.V3)) {
            LedgerHandle writer = client.createLedger(3, 3, 3, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 10);
            LedgerHandle reader = client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            CompletableFuture<Polled> poll = poll(reader, 9, Duration.ofSeconds(60));
            Payloads.append(writer, 1);
            Polled polled = poll.get(30, TimeUnit.SECONDS);
            assertEquals(9, polled.lastConfirmed());
            assertNotNull(polled.entry());
            assertEquals(9, polled.entry().getEntryId());
            assertArrayEquals(Payloads.of(writer.getId(), 9), polled.entry().getEntry());
            writer.close();
        }
    }

    @Test
    void aLongPollEndsWhenItsTimeIsOver() throws Exception {
        try (BookKeeper client = cluster.connect(Wire.V3)) {
            LedgerHandle writer = client.createLedger(3, 3, 3, DigestType.CRC32C, Payloads.PASSWORD);
            Payloads.append(writer, 10);
            LedgerHandle reader = client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, Payloads.PASSWORD);
            Polled polled = poll(reader, 9, Duration.ofMillis(300)).get(30, TimeUnit.SECONDS);
            assertEquals(8, polled.lastConfirmed());
            assertNull(polled.entry());
            writer.close();
        }
    }

    private record Polled(long lastConfirmed, LedgerEntry entry) {}

    private static CompletableFuture<Polled> poll(LedgerHandle reader, long entry, Duration limit) {
        CompletableFuture<Polled> result = new CompletableFuture<>();
        reader.asyncReadLastConfirmedAndEntry(entry, limit.toMillis(), true, (code, confirmed, found, context) -> {
            if (code == BKException.Code.OK) {
                result.complete(new Polled(confirmed, found));
            } else {
                result.completeExceptionally(BKException.create(code));
            }
        }, null);
        return result;
    }
}
