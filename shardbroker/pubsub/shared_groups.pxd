cdef class GroupPicker:
    cdef str strategy
    cdef object next_turn, random
    cdef long own_destination

    cdef tuple pick(self, tuple group, bytes topic, bytes publisher, dict memory)
    cdef object turn_of(self, tuple key)
