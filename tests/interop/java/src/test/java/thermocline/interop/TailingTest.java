package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import java.time.Duration;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
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
}
